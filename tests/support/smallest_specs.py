"""For each field of a spec one value that is admitted with all others at their defaults."""

from __future__ import annotations

from typing import Any

from refused_specs import AT_NIGHT, SCHEDULE

SMALLEST: dict[str, dict[str, Any]] = {
    "model.servedName": {"model": {"source": "package://x", "servedName": "m"}},
    "model.source hub": {"model": {"source": "hf://acme-labs/Llama-9.9-3B-Instruct"}},
    "model.source hub file": {"model": {"source": "hf://acme/tiny/sub/Q4_K_M.gguf@main"}},
    "model.source claim": {"model": {"source": "pvc://models"}},
    "model.source folder of a claim": {"model": {"source": "pvc://models/llama/8b"}},
    "model.source image": {"model": {"source": "oci://registry.local:5000/acme/llama:8b#models"}},
    "model.source digest": {"model": {"source": "oci://acme/llama@sha256:" + "0" * 64}},
    "model.tokenSecretName": {"model": {"source": "hf://acme/tiny@v1", "tokenSecretName": "hub"}},
    "model.cacheVolumeName": {"model": {"source": "hf://acme/tiny@v1", "cacheVolumeName": "cache"}},
    "accelerator": {"accelerator": {"resource": "nvidia.com/gpu"}},
    "replicas": {"replicas": 2},
    "runtime.image": {"runtime": {"image": "paceline.io/runtime:1.10"}},
    "runtime.maxModelLen": {"runtime": {"maxModelLen": 4096}},
    "runtime.maxNumSeqs": {"runtime": {"maxNumSeqs": 64}},
    "runtime.maxBatchedTokens": {"runtime": {"maxBatchedTokens": 2048}},
    "runtime.prefillChunkTokens": {"runtime": {"prefillChunkTokens": 512}},
    "runtime.blockSize": {"runtime": {"blockSize": 16}},
    "runtime.kvCache.memory": {"runtime": {"kvCache": {"memory": "20Gi"}}},
    "runtime.kvCache.hostMemory": {"runtime": {"kvCache": {"hostMemory": "40Gi"}}},
    "runtime.prefixCaching.isolation": {"runtime": {"prefixCaching": {"isolation": "PerTenant"}}},
    "runtime.prefixCaching.evictionWatermarkPercent": {"runtime": {"prefixCaching": {"evictionWatermarkPercent": 75}}},
    "runtime.scheduling": {"runtime": {"scheduling": {"policy": "Deadline", "fairShare": True}}},
    "runtime.dtype": {"runtime": {"dtype": "BFloat16"}},
    "runtime.prefillMinChunkTokens": {"runtime": {"prefillMinChunkTokens": 64}},
    "runtime.maxStepSharePercent": {"runtime": {"maxStepSharePercent": 25}},
    "runtime.maxQueuedRequests": {"runtime": {"maxQueuedRequests": 100}},
    "runtime.tenantMaxSeqs": {"runtime": {"tenantMaxSeqs": 4}},
    "runtime.prefixCaching.enabled": {"runtime": {"prefixCaching": {"enabled": True}}},
    "pools.shapes": {"pools": [{"name": "long", "shapes": ["VeryLong", "LongInputShortOutput"]}]},
    "pools.slo": {"pools": [{"name": "long", "slo": {"ttft": {"p90": "5s"}}}]},
    "slo": {"slo": {"ttft": {"p90": "800ms", "p99": "2s"}, "tpot": {"p90": "60ms", "p99": "120ms"}}},
    "scaling.mode": {"scaling": {"mode": "Automatic"}},
    "scaling.minReplicas": {"scaling": {"minReplicas": 2, "maxReplicas": 2}},
    "scaling.maxReplicas": {"scaling": {"maxReplicas": 8}},
    "pools.scaling": {"pools": [{"name": "long", "scaling": {"mode": "Fixed", "maxReplicas": 2}}]},
    "scaling.scaleDownWindow": {"scaling": {"maxReplicas": 8, "scaleDownWindow": "10m"}},
    "scaling.schedules": {"scaling": {"maxReplicas": 8, "schedules": [SCHEDULE | {"end": "24:00"}]}},
    "runtime.autoRanges": {
        "runtime": {
            "maxNumSeqs": 64,
            "autoRanges": {"maxNumSeqs": {"min": 16, "max": 64}, "schedules": [AT_NIGHT]},
        },
        "pools": [{"name": "long", "runtime": {"autoRanges": {"maxBatchedTokens": {"min": 256, "max": 1024}}}}],
    },
    "scaling.mode, external": {"scaling": {"mode": "External"}},
    "scaling.scaleToZero": {"scaling": {"scaleToZero": {"holdRequestsFor": "60s"}}},
    "scaling.scaleToZero.after": {"scaling": {"maxReplicas": 1, "scaleToZero": {"after": "10m"}}},
    "scaling.scaleToZero.after, several pools": {
        "scaling": {"maxReplicas": 4, "scaleToZero": {"after": "10m"}},
        "pools": [{"name": "long"}, {"name": "short", "scaling": {"maxReplicas": 2}}],
    },
    "tenancy.identity": {"tenancy": {"identity": {"from": "APIKey", "secretName": "chat-keys"}}},
    "tenancy.identity, header": {"tenancy": {"identity": {"from": "TrustedHeader", "header": "x-team"}}},
    "tenancy.default": {
        "tenancy": {"default": {"requestsPerMinute": 600, "tokensPerMinute": 200000, "maxConcurrent": 32}}
    },
    "tenancy.tenants": {"tenancy": {"tenants": [{"name": "batch", "weight": 1, "maxConcurrent": 4}]}},
    "tenancy.maxQueuedPerTenant": {"tenancy": {"maxQueuedPerTenant": 0}},
    "tenancy.maxWait": {"tenancy": {"maxWait": "0s"}},
    "routing.maxRequestDuration": {"routing": {"maxRequestDuration": "10m"}},
    "routing.retryBudgetPercent": {"routing": {"retryBudgetPercent": 0}},
    "routing.holdRequestsFor": {"routing": {"holdRequestsFor": "0s"}},
    "routing.spillAbovePerReplica": {"routing": {"spillAbovePerReplica": 64}},
    "routing.slowRequestThreshold": {"routing": {"slowRequestThreshold": "5s"}},
    "routing.versionStickiness": {"routing": {"versionStickiness": "None"}},
    "routing.shapes": {"routing": {"shapes": {"longInputTokens": 4096, "parallelSamples": 4}}},
    "routing.overLong": {"routing": {"overLong": {"action": "Cut", "aboveTokens": 8192}}},
    "pools": {"pools": [{"name": "long", "replicas": 1, "runtime": {"prefillChunkTokens": 2048}}]},
    "rollout": {"rollout": {"strategy": "Recreate"}},
    "rollout.order": {"rollout": {"order": {"revision": "chat-7f3c9a1b2c", "action": "Pin"}}},
    "rollout.strategy, Canary": {"rollout": {"strategy": "Canary"}},
    "rollout.steps": {
        "rollout": {"strategy": "Canary", "steps": [{"weight": 5, "replicas": 1, "hold": "10m"}, {"weight": 100}]}
    },
    "rollout.gates": {
        "rollout": {
            "strategy": "Canary",
            "gates": [{"signal": "ErrorRate", "maxRegressionPercent": 0, "minSamples": 50, "warmUp": "30s"}],
        }
    },
    "rollout.gates, of replicas": {
        "rollout": {
            "strategy": "Canary",
            "gates": [
                {"signal": "HitRate", "maxRegressionPercent": 10, "warmUp": "15m"},
                {"signal": "OutputCanary", "maxRegressionPercent": 0},
            ],
        }
    },
    "rollout.lastPools": {
        "rollout": {"strategy": "Canary", "lastPools": ["default", "bulk"]},
        "pools": [{"name": "bulk"}],
    },
    "rollout.queries": {
        "rollout": {
            "strategy": "Canary",
            "queries": [
                {"name": "cost", "query": 'sum(cost{pod=~"$candidatePods"})', "max": "0.05", "holdFor": "5m"},
                {"name": "hits", "query": 'h{revision="$candidate"}', "min": "-1.5", "warmUp": "2m"},
            ],
        }
    },
    "rollout.shadow": {
        "rollout": {
            "strategy": "Canary",
            "shadow": {
                "percent": 5,
                "minSamples": 200,
                "maxDuration": "30m",
                "optOutTenants": ["acme"],
                "scores": [{"name": "tone", "maxPercent": 10, "minSamples": 40}],
            },
            "gates": [{"signal": "OutputDifference", "maxRegressionPercent": 3}],
        }
    },
    "rollout.onNotKnown": {"rollout": {"strategy": "Canary", "onNotKnown": "Rollback", "onBreach": "Pause"}},
    "rollout.paused": {"rollout": {"strategy": "Canary", "paused": True}},
    "rollout.order, Skip": {
        "rollout": {
            "strategy": "Canary",
            "order": {"revision": "chat-7", "action": "Skip", "id": "2", "by": "ann", "why": "night"},
        }
    },
    "driftPolicy": {"driftPolicy": "Repair"},
    "revisionHistoryLimit": {"revisionHistoryLimit": 3},
    "suspend": {"suspend": True},
    "pod.nodeSelector": {"pod": {"nodeSelector": {"a": "b"}}},
    "pod.tolerations": {"pod": {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}},
    "pod.affinity": {"pod": {"affinity": {"nodeAffinity": {}}}},
    "pod.topologySpreadConstraints": {"pod": {"topologySpreadConstraints": []}},
    "pod.resources": {"pod": {"resources": {"requests": {"cpu": 2}, "limits": {"memory": "8Gi"}}}},
    "pod.env": {"pod": {"env": [{"name": "A", "value": "b"}, {"name": "S", "valueFrom": {"secretKeyRef": {}}}]}},
    "pod.volumes": {"pod": {"volumes": [{"name": "m", "hostPath": {"path": "/models"}}]}},
    "pod.volumeMounts": {"pod": {"volumeMounts": [{"name": "m", "mountPath": "/models"}]}},
    "pod.imagePullSecrets": {"pod": {"imagePullSecrets": [{"name": "s"}]}},
    "pod.priorityClassName": {"pod": {"priorityClassName": "high"}},
    "pod.serviceAccountName": {"pod": {"serviceAccountName": "models"}},
    "pod.terminationGracePeriodSeconds": {"pod": {"terminationGracePeriodSeconds": 60}},
}
