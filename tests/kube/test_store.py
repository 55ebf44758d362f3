from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paceline_kube import Store, by_label, by_namespaced_label, by_owner


def obj(name: str, *, uid: str = "", version: int = 1, labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "demo",
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(version),
            "labels": labels or {},
        }
    }


def test_what_a_list_lacks_has_been_deleted() -> None:
    store = Store()
    store.replace([obj("a"), obj("b"), obj("c")])
    changes = store.replace([obj("a"), obj("c", version=2), obj("d")])
    assert [(change.type, change.key[1]) for change in changes] == [
        ("deleted", "b"),
        ("modified", "c"),
        ("added", "d"),
    ]
    assert all(change.relisted for change in changes)


def test_the_same_version_again_is_no_change() -> None:
    store = Store()
    store.put(obj("a"))
    assert store.put(obj("a")) == []


def test_a_recreated_object_is_a_deletion_and_an_addition() -> None:
    store = Store()
    store.put(obj("a", uid="1"))
    changes = store.put(obj("a", uid="2", version=2))
    assert [change.type for change in changes] == ["deleted", "added"]
    assert store.by_uid("1") is None
    assert store.by_uid("2") is store.get("demo", "a")


def test_a_deletion_carries_the_last_state_told() -> None:
    store = Store()
    store.put(obj("a"))
    (change,) = store.remove(("demo", "a"), obj("a", version=7))
    assert change.object["metadata"]["resourceVersion"] == "7"
    assert store.remove(("demo", "a")) == []


def test_owner_and_label_indexes() -> None:
    store = Store({"owner": by_owner, "app": by_label("app"), "service": by_namespaced_label("app")})
    pod = obj("p", labels={"app": "chat"})
    pod["metadata"]["ownerReferences"] = [{"uid": "rs-1"}]
    store.put(pod)
    store.put(obj("q"))
    assert store.by_index("owner", "rs-1") == [pod]
    assert store.by_index("app", "chat") == [pod]
    assert store.by_index("service", "demo/chat") == [pod]
    assert store.index_values("app") == ["chat"]
    store.remove(("demo", "p"))
    assert store.by_index("owner", "rs-1") == []
    assert store.index_values("app") == []


step = st.tuples(st.sampled_from("abcde"), st.sampled_from(["", "x", "y"]), st.sampled_from("pdn"))


@given(st.lists(step, max_size=40), st.lists(st.sampled_from("abcde"), unique=True))
def test_indexes_always_agree_with_the_objects(steps: list[tuple[str, str, str]], kept: list[str]) -> None:
    store = Store({"app": by_label("app")})
    for version, (name, label, action) in enumerate(steps, start=1):
        if action == "d":
            store.remove(("demo", name))
        else:
            uid = f"uid-{name}-{version if action == 'n' else 0}"
            store.put(obj(name, uid=uid, version=version, labels={"app": label} if label else {}))
    store.replace([found for name in kept if (found := store.get("demo", name)) is not None])
    expected: dict[str, set[str]] = {}
    for item in store:
        if label := item["metadata"]["labels"].get("app"):
            expected.setdefault(label, set()).add(item["metadata"]["name"])
    found_in_index = {
        value: {item["metadata"]["name"] for item in store.by_index("app", value)}
        for value in store.index_values("app")
    }
    assert found_in_index == expected
    assert all(store.by_uid(item["metadata"]["uid"]) is item for item in store)
    assert {item["metadata"]["name"] for item in store} <= set(kept)
