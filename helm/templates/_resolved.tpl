{{/* Enabled models and pools, and the values of a router or a pool, completed from the common ones. */}}

{{/* $ -> list of names */}}
{{- define "baton.models" -}}
{{- $names := list -}}
{{- range $name, $model := .Values.models -}}
{{- if and $model (ne $model.enabled false) -}}{{- $names = append $names $name -}}{{- end -}}
{{- end -}}
{{- $names | toYaml -}}
{{- end -}}

{{- define "baton.pools" -}}
{{- $names := list -}}
{{- range $name, $pool := .Values.pools -}}
{{- if and $pool (ne $pool.enabled false) -}}{{- $names = append $names $name -}}{{- end -}}
{{- end -}}
{{- $names | toYaml -}}
{{- end -}}

{{/* dict "base" MAP "over" MAP -> both as YAML. Unlike mergeOverwrite, `false` and 0 count as values. */}}
{{- define "baton.merge" -}}
{{- $merged := deepCopy .base -}}
{{- range $key, $value := .over -}}
{{- $old := get $merged $key -}}
{{- if and (kindIs "map" $value) (kindIs "map" $old) -}}
{{- $value = include "baton.merge" (dict "base" $old "over" $value) | fromYaml -}}
{{- end -}}
{{- $_ := set $merged $key $value -}}
{{- end -}}
{{- $merged | toYaml -}}
{{- end -}}

{{/* dict "root" $ "name" MODEL -> the router's values as YAML */}}
{{- define "baton.router.values" -}}
{{- $model := index .root.Values.models .name -}}
{{- include "baton.merge" (dict "base" .root.Values.router "over" ($model.router | default dict)) -}}
{{- end -}}

{{/* dict "root" $ "name" POOL -> the pool's values as YAML; `model` is resolved */}}
{{- define "baton.pool.values" -}}
{{- $pool := index .root.Values.pools .name -}}
{{- $merged := include "baton.merge" (dict "base" .root.Values.workers "over" $pool) | fromYaml -}}
{{- $models := include "baton.models" .root | fromYamlArray -}}
{{- if $merged.model -}}
{{- if not (has $merged.model $models) -}}
{{- fail (printf "pools.%s.model: there is no model %q; models has %s" .name $merged.model (join ", " $models)) -}}
{{- end -}}
{{- else if eq (len $models) 1 -}}
{{- $_ := set $merged "model" (first $models) -}}
{{- else -}}
{{- fail (printf "pools.%s.model is required: models has %s" .name (join ", " $models)) -}}
{{- end -}}
{{- $merged | toYaml -}}
{{- end -}}

{{/* dict "root" $ "name" MODEL -> the name that clients use */}}
{{- define "baton.model.served" -}}
{{- default .name (index .root.Values.models .name).servedModelName -}}
{{- end -}}
