import pytest

from paceline_kube import DEPLOYMENTS, INFERENCESERVICES, NODES, PODS


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (PODS.path(), "/api/v1/pods"),
        (PODS.path("demo"), "/api/v1/namespaces/demo/pods"),
        (PODS.path("demo", "p", "log"), "/api/v1/namespaces/demo/pods/p/log"),
        (NODES.path(name="n1"), "/api/v1/nodes/n1"),
        (DEPLOYMENTS.path("demo", "d", "scale"), "/apis/apps/v1/namespaces/demo/deployments/d/scale"),
        (
            INFERENCESERVICES.path("demo", "chat", "status"),
            "/apis/paceline.io/v1alpha1/namespaces/demo/inferenceservices/chat/status",
        ),
    ],
)
def test_paths_are_the_api_servers(path: str, expected: str) -> None:
    assert path == expected


def test_a_name_can_not_leave_its_place_in_the_path() -> None:
    assert PODS.path("demo", "../secrets/x?y=1") == "/api/v1/namespaces/demo/pods/..%2Fsecrets%2Fx%3Fy%3D1"


def test_a_named_object_of_a_namespaced_kind_needs_its_namespace() -> None:
    with pytest.raises(ValueError, match="say which"):
        PODS.path(name="p")


def test_a_cluster_scoped_kind_takes_no_namespace() -> None:
    with pytest.raises(ValueError, match="cluster-scoped"):
        NODES.path("demo", "n1")


def test_a_subresource_needs_a_name() -> None:
    with pytest.raises(ValueError, match="needs the name"):
        PODS.path("demo", subresource="status")


def test_api_versions() -> None:
    assert (PODS.api_version, DEPLOYMENTS.api_version) == ("v1", "apps/v1")
