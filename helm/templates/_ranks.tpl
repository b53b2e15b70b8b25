{{/* A worker of several ranks is one pod with all of them. Rank r sends and receives blocks at port 50062 + r. */}}

{{/* VALUES of a pool -> number of ranks of each of its workers */}}
{{- define "baton.pool.ranks" -}}
{{- $size := hasKey .settings "tensor_parallel_size" | ternary .settings.tensor_parallel_size 1 -}}
{{- $stages := hasKey .settings "pipeline_parallel_size" | ternary .settings.pipeline_parallel_size 1 -}}
{{- mul (int64 $size) (int64 $stages) -}}
{{- end -}}

{{/* dict "name" POOL "pool" VALUES: refuses ranks where the worker would refuse them, too */}}
{{- define "baton.pool.checkRanks" -}}
{{- $ranks := include "baton.pool.ranks" .pool | int -}}
{{- $at := printf "pools.%s.settings: %d ranks (tensor_parallel_size times pipeline_parallel_size)" .name $ranks -}}
{{- if gt $ranks 1 -}}
{{- if .pool.gpu.count -}}
{{- fail (printf "%s: ranks compute on CPUs: gpu.count must be 0, not %d" $at (int64 .pool.gpu.count)) -}}
{{- end -}}
{{- end -}}
{{- if or (lt $ranks 1) (gt $ranks 64) -}}
{{- fail (printf "%s: must be 1 to 64" $at) -}}
{{- end -}}
{{- end -}}

{{/* NUMBER of ranks -> list of their ports for blocks */}}
{{- define "baton.transferPorts" -}}
{{- $ports := list -}}
{{- range $rank := until (int .) -}}{{- $ports = append $ports (add 50062 $rank) -}}{{- end -}}
{{- $ports | toYaml -}}
{{- end -}}

{{/* $ -> the same of the largest worker of all pools */}}
{{- define "baton.allTransferPorts" -}}
{{- $most := 1 -}}
{{- range $name := include "baton.pools" . | fromYamlArray -}}
{{- $most = max $most (include "baton.pool.ranks" (include "baton.pool.values" (dict "root" $ "name" $name) | fromYaml)) -}}
{{- end -}}
{{- include "baton.transferPorts" $most -}}
{{- end -}}
