{{/* A worker on several hosts (settings.nnodes): a group of pods, of which the first one is the worker and the others have ranks of it. */}}

{{/* VALUES of a pool -> number of hosts of each of its workers */}}
{{- define "baton.pool.hosts" -}}
{{- hasKey .settings "nnodes" | ternary .settings.nnodes 1 | int64 -}}
{{- end -}}

{{/* dict "root" $ "name" POOL "pool" VALUES: refuses what groups of pods do not do */}}
{{- define "baton.pool.checkHosts" -}}
{{- $hosts := include "baton.pool.hosts" .pool | int -}}
{{- $at := printf "pools.%s.settings.nnodes" .name -}}
{{- if lt $hosts 1 -}}
{{- fail (printf "%s: must be 1 or more" $at) -}}
{{- end -}}
{{- if gt $hosts 1 -}}
{{- $ranks := include "baton.pool.ranks" .pool | int -}}
{{- if mod $ranks $hosts -}}
{{- fail (printf "%s: %d ranks are not divided evenly among %d hosts" $at $ranks $hosts) -}}
{{- end -}}
{{- if ne .pool.autoscaling.kind "none" -}}
{{- fail (printf "%s: groups of pods have no autoscaler: pools.%s.autoscaling.kind must be none" $at .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* dict "variable" NAME "field" PATH "address" TEXT: what has a pod's number in its group */}}
{{- define "baton.hosts.env" -}}
- name: {{ .variable }}
  valueFrom:
    fieldRef:
      fieldPath: {{ .field }}
{{- with .address }}
- name: BATON_MASTER_ADDR
  value: {{ . }}
{{- end }}
# An upgrade replaces one pod after the other: a new one asks again until the first one is new, too.
- name: BATON_NODE_PATIENCE_S
  value: "600"
{{- end -}}

{{/* $ -> whether a pool has several hosts */}}
{{- define "baton.anyHosts" -}}
{{- $most := 1 -}}
{{- range $name := include "baton.pools" . | fromYamlArray -}}
{{- $most = max $most (include "baton.pool.hosts" (include "baton.pool.values" (dict "root" $ "name" $name) | fromYaml)) -}}
{{- end -}}
{{- gt $most 1 | ternary "true" "" -}}
{{- end -}}
