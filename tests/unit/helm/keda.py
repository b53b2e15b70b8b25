"""The fields of KEDA's ScaledObject (keda.sh/v1alpha1, KEDA 2.16 and later) as a strict schema.

Written down from the resource's public types and reference, since neither the definition nor its
controller can be had here: a subset, of what the chart may write.
"""

from __future__ import annotations

from typing import Any

_INT32 = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_TEXT = {"type": "string", "minLength": 1}


def _strict(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_SCALING_RULES = _strict(
    {
        "stabilizationWindowSeconds": {"type": "integer", "minimum": 0, "maximum": 3600},
        "selectPolicy": {"enum": ["Max", "Min", "Disabled"]},
        "policies": {
            "type": "array",
            "items": _strict(
                {
                    "type": {"enum": ["Pods", "Percent"]},
                    "value": {"type": "integer", "minimum": 1},
                    "periodSeconds": {"type": "integer", "minimum": 1, "maximum": 1800},
                },
                "type",
                "value",
                "periodSeconds",
            ),
        },
    }
)
_TRIGGER = _strict(
    {
        "type": _TEXT,
        "name": _TEXT,
        "useCachedMetrics": {"type": "boolean"},
        "metricType": {"enum": ["AverageValue", "Value", "Utilization"]},
        # A map of texts: a number or a truth value there is refused by Kubernetes.
        "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
        "authenticationRef": _strict({"name": _TEXT, "kind": _TEXT}, "name"),
    },
    "type",
    "metadata",
)
_FALLBACK = _strict(
    {
        "failureThreshold": _INT32,
        "replicas": _INT32,
        "behavior": {
            "enum": [
                "static",
                "currentReplicas",
                "currentReplicasIfHigher",
                "currentReplicasIfLower",
            ]
        },
    },
    "failureThreshold",
    "replicas",
)
SPEC = _strict(
    {
        "scaleTargetRef": _strict(
            {
                "name": _TEXT,
                "apiVersion": _TEXT,
                "kind": _TEXT,
                "envSourceContainerName": _TEXT,
            },
            "name",
        ),
        "pollingInterval": _INT32,
        "initialCooldownPeriod": _INT32,
        "cooldownPeriod": _INT32,
        "idleReplicaCount": _INT32,
        "minReplicaCount": _INT32,
        "maxReplicaCount": _INT32,
        "fallback": _FALLBACK,
        "advanced": _strict(
            {
                "restoreToOriginalReplicaCount": {"type": "boolean"},
                "horizontalPodAutoscalerConfig": _strict(
                    {
                        "name": _TEXT,
                        "behavior": _strict(
                            {"scaleUp": _SCALING_RULES, "scaleDown": _SCALING_RULES}
                        ),
                    }
                ),
            }
        ),
        "triggers": {"type": "array", "minItems": 1, "items": _TRIGGER},
    },
    "scaleTargetRef",
    "triggers",
)
SCALED_OBJECT = _strict(
    {
        "apiVersion": {"const": "keda.sh/v1alpha1"},
        "kind": {"const": "ScaledObject"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": SPEC,
    },
    "apiVersion",
    "kind",
    "metadata",
    "spec",
)
#: What the trigger of Prometheus reads.
PROMETHEUS = _strict(
    {
        name: {"type": "string"}
        for name in (
            "serverAddress",
            "query",
            "queryParameters",
            "threshold",
            "activationThreshold",
            "namespace",
            "customHeaders",
            "ignoreNullValues",
            "unsafeSsl",
            "timeout",
        )
    },
    "serverAddress",
    "query",
    "threshold",
)
