{{/* dict "root" $ "pool" VALUES: a worker's settings in addition to the common ones */}}
{{- define "baton.pool.env" -}}
{{- $model := dict "root" .root "name" .pool.model -}}
- name: BATON_MODEL
  value: {{ include "baton.model.path" $model }}
- name: BATON_SERVED_MODEL_NAME
  value: {{ include "baton.model.served" $model | quote }}
- name: BATON_MODEL_GENERATION
  value: {{ (index .root.Values.models .pool.model).generation | default 0 | int64 | quote }}
# Other processes use a worker's address: the name of a Deployment's pod cannot be resolved.
- name: BATON_ADVERTISE_HOST
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: BATON_PORT
  value: "50061"
- name: BATON_TRANSFER_PORT
  value: "50062"
- name: BATON_METRICS_PORT
  value: "9400"
# The network policy decides which pods reach the port.
- name: BATON_OPEN_METRICS
  value: "true"
# Created by the worker, for this worker only.
- name: BATON_RUNTIME_DIR
  value: /run/baton/own
- name: BATON_DRAIN_GRACE_S
  value: {{ int64 .pool.drainGraceSeconds | quote }}
{{- if not (hasKey .pool.settings "connectors") }}
# Pods share no memory and no folder with each other.
- name: BATON_CONNECTORS
  value: zmq
{{- end }}
{{- if and .pool.gpu.count (not (hasKey .pool.settings "device")) }}
- name: BATON_DEVICE
  value: cuda
{{- end }}
{{- include "baton.settings" .pool.settings }}
{{- with .pool.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* VALUES: resources, with the GPUs among the limits */}}
{{- define "baton.pool.resources" -}}
{{- $resources := deepCopy .resources -}}
{{- if .gpu.count -}}
{{- $limits := mergeOverwrite (dict .gpu.resourceName (int64 .gpu.count)) ($resources.limits | default dict) -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* VALUES: target per worker, by role, unless `targets` sets another one */}}
{{- define "baton.pool.targets" -}}
{{- if .autoscaling.planner -}}
plannedWorkers: 1
{{- else if .autoscaling.targets -}}
{{- toYaml .autoscaling.targets -}}
{{- else if eq .role "prefill" -}}
queueTokens: 8192
{{- else -}}
kvUse: 0.7
runningSequences: 48
{{- end -}}
{{- end -}}

{{/* dict "root" $ "name" POOL "pool" VALUES: refuse a pool that cannot follow the planner, or would end requests at zero workers */}}
{{- define "baton.pool.checkPlanner" -}}
{{- $root := .root -}}
{{- $pool := .pool -}}
{{- $path := printf "pools.%s.autoscaling" .name -}}
{{- if and $pool.autoscaling.planner (ne $pool.autoscaling.kind "none") -}}
{{- $router := include "baton.router.values" (dict "root" $root "name" (include "baton.router.of" (dict "root" $root "name" $pool.model))) | fromYaml -}}
{{- if not (has ($router.settings.planner | default "off") (list "advise" "act")) -}}
{{- fail (printf "%s.planner: the router does not plan: set router.settings.planner to advise or act" $path) -}}
{{- end -}}
{{- range $other := include "baton.pools" $root | fromYamlArray -}}
{{- $values := index $root.Values.pools $other -}}
{{- $same := and (ne $other $.name) (eq $values.role $pool.role) (eq ($values.model | default $pool.model) $pool.model) -}}
{{- if and $same (ne ($values.autoscaling | default dict).planner false) -}}
{{- fail (printf "%s.planner: pools.%s has the role %s, too, and the planner wants workers of a role: only one pool of it can follow" $path $other $pool.role) -}}
{{- end -}}
{{- end -}}
{{- if not (int64 $pool.autoscaling.minReplicas) -}}
{{- if not $router.settings.worker_wait_s -}}
{{- fail (printf "%s.minReplicas: without workers requests are refused: set router.settings.worker_wait_s to the seconds that they should wait for one" $path) -}}
{{- end -}}
{{- if ne (toString (dig (printf "planner_min_%s" $pool.role) "1" $router.settings)) "0" -}}
{{- fail (printf "%s.minReplicas: the planner always wants a worker: set router.settings.planner_min_%s to 0" $path $pool.role) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* VALUES: seconds before there are fewer workers; the planner has waited already */}}
{{- define "baton.pool.stabilization" -}}
{{- ternary 0 (int64 .autoscaling.stabilizationSeconds) .autoscaling.planner -}}
{{- end -}}

{{/* dict "root" $ "name" POOL "pool" VALUES: Prometheus queries by target, each a sum over all workers */}}
{{- define "baton.pool.queries" -}}
{{- $namespace := .root.Release.Namespace -}}
{{- $router := include "baton.router.name" (dict "root" .root "name" (include "baton.router.of" (dict "root" .root "name" .pool.model))) -}}
{{- $workers := include "baton.pool.name" . -}}
queueTokens: sum(baton_num_tokens_waiting{namespace="{{ $namespace }}",service="{{ $router }}",model_name="{{ include "baton.model.served" (dict "root" .root "name" .pool.model) }}"})
kvUse: sum(baton_kv_cache_usage_perc{namespace="{{ $namespace }}",service="{{ $workers }}"})
plannedWorkers: max(baton_planner_desired_workers{namespace="{{ $namespace }}",service="{{ $router }}",model_name="{{ include "baton.model.served" (dict "root" .root "name" .pool.model) }}",role="{{ .pool.role }}"})
runningSequences: sum(baton_num_requests_running{namespace="{{ $namespace }}",service="{{ $workers }}"})
{{- end -}}
