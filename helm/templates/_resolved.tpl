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

{{/* $ -> list of names: of one router for all models, or of a router for each model */}}
{{- define "baton.routers" -}}
{{- if .Values.catalogue.enabled -}}
{{- list "catalogue" | toYaml -}}
{{- else -}}
{{- include "baton.models" . -}}
{{- end -}}
{{- end -}}

{{/* dict "root" $ "name" MODEL -> the name of its router */}}
{{- define "baton.router.of" -}}
{{- ternary "catalogue" .name .root.Values.catalogue.enabled -}}
{{- end -}}

{{/* dict "root" $ "name" ROUTER -> list of its models, the default one first */}}
{{- define "baton.router.models" -}}
{{- if .root.Values.catalogue.enabled -}}
{{- $models := include "baton.models" .root | fromYamlArray -}}
{{- $default := .root.Values.catalogue.default -}}
{{- if $default -}}
{{- if not (has $default $models) -}}
{{- fail (printf "catalogue.default: there is no model %q; models has %s" $default (join ", " $models)) -}}
{{- end -}}
{{- $models = prepend (without $models $default) $default -}}
{{- end -}}
{{- $models | toYaml -}}
{{- else -}}
{{- list .name | toYaml -}}
{{- end -}}
{{- end -}}

{{/* dict "root" $ "name" ROUTER "template" NAME -> what the template gives for each of its models, which have folders of their own */}}
{{- define "baton.router.each" -}}
{{- $at := . -}}
{{- range $name := include "baton.router.models" . | fromYamlArray -}}
{{- $model := dict "root" $at.root "name" $name -}}
{{- if $at.root.Values.catalogue.enabled -}}
{{- $model = merge $model (dict "base" (printf "/catalogue/%s" $name) "volume" (printf "model-%s" $name)) -}}
{{- end -}}
{{- with include $at.template $model }}
{{ . }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* dict "root" $ "name" ROUTER -> the router's values as YAML; a router of all models has the common ones */}}
{{- define "baton.router.values" -}}
{{- $own := dict -}}
{{- if not .root.Values.catalogue.enabled -}}
{{- $own = (index .root.Values.models .name).router | default dict -}}
{{- end -}}
{{- include "baton.merge" (dict "base" .root.Values.router "over" $own) -}}
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
{{- include "baton.pool.checkRanks" (dict "name" .name "pool" $merged) -}}
{{- include "baton.pool.checkHosts" (dict "root" .root "name" .name "pool" $merged) -}}
{{- $merged | toYaml -}}
{{- end -}}

{{/* dict "root" $ "name" MODEL -> the name that clients use */}}
{{- define "baton.model.served" -}}
{{- default .name (index .root.Values.models .name).servedModelName -}}
{{- end -}}
