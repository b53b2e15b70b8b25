{{/* dict "root" $ "pool" VALUES: what a worker is told beside what all are told */}}
{{- define "baton.pool.env" -}}
{{- $model := dict "root" .root "name" .pool.model -}}
- name: BATON_MODEL
  value: {{ include "baton.model.path" $model }}
- name: BATON_SERVED_MODEL_NAME
  value: {{ include "baton.model.served" $model | quote }}
- name: BATON_MODEL_GENERATION
  value: {{ (index .root.Values.models .pool.model).generation | default 0 | int64 | quote }}
# Others reach a worker by its address: the name of a Deployment's pod resolves nowhere.
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
# The port is for those whom the network policy lets in.
- name: BATON_OPEN_METRICS
  value: "true"
# Made by the worker, for itself alone.
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

{{/* VALUES: what is kept per worker, by role, unless `targets` says otherwise */}}
{{- define "baton.pool.targets" -}}
{{- if .autoscaling.targets -}}
{{- toYaml .autoscaling.targets -}}
{{- else if eq .role "prefill" -}}
queueTokens: 8192
{{- else -}}
kvUse: 0.7
runningSequences: 48
{{- end -}}
{{- end -}}

{{/* dict "root" $ "name" POOL "pool" VALUES: Prometheus queries by target, each a sum over all workers */}}
{{- define "baton.pool.queries" -}}
{{- $namespace := .root.Release.Namespace -}}
{{- $router := include "baton.router.name" (dict "root" .root "name" .pool.model) -}}
{{- $workers := include "baton.pool.name" . -}}
queueTokens: sum(baton_num_tokens_waiting{namespace="{{ $namespace }}",service="{{ $router }}"})
kvUse: sum(baton_kv_cache_usage_perc{namespace="{{ $namespace }}",service="{{ $workers }}"})
runningSequences: sum(baton_num_requests_running{namespace="{{ $namespace }}",service="{{ $workers }}"})
{{- end -}}
