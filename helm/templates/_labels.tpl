{{/*
dict "root" $ "component" NAME, and "model", "role", "pool" where there are such. A Deployment's selector can never change: a pool is found
by its name alone, so that an upgrade may give it another model.
*/}}
{{- define "baton.selectorLabels" -}}
app.kubernetes.io/name: {{ include "baton.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- if .pool }}
baton.dev/pool: {{ .pool }}
{{- else if .model }}
baton.dev/model: {{ .model }}
{{- end }}
{{- end -}}

{{- define "baton.labels" -}}
{{ include "baton.selectorLabels" . }}
{{- if and .pool .model }}
baton.dev/model: {{ .model }}
{{- end }}
{{- with .role }}
baton.dev/role: {{ . }}
{{- end }}
app.kubernetes.io/part-of: baton
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of objects that belong to the release as a whole: dict "root" $ "component" NAME. */}}
{{- define "baton.peerSelector" -}}
podSelector:
  matchLabels:
    {{- include "baton.selectorLabels" . | nindent 4 }}
{{- end -}}
