{{/* Names of objects. A release called like the chart gives short ones. */}}

{{- define "baton.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "baton.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "baton.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "baton.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* dict "root" $ "name" MODEL */}}
{{- define "baton.router.name" -}}
{{- printf "%s-router-%s" (include "baton.fullname" .root) .name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* dict "root" $ "name" POOL */}}
{{- define "baton.pool.name" -}}
{{- printf "%s-%s" (include "baton.fullname" .root) .name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "baton.redis.name" -}}
{{- printf "%s-redis" (include "baton.fullname" .) -}}
{{- end -}}

{{- define "baton.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "baton.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* dict "root" $ "image" VALUES: repository@digest has precedence over a tag. */}}
{{- define "baton.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}
