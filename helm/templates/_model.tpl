{{/* A model's files in BASE/NAME: shipped with the image, made by a command, or on a volume. All take dict "root" $ "name" MODEL, and for one
of several models in a pod "base" FOLDER "volume" NAME. */}}

{{- define "baton.model.path" -}}
{{ .base | default "/models" }}/{{ .name }}
{{- end -}}

{{- define "baton.model.volumeName" -}}
{{ .volume | default "model" }}
{{- end -}}

{{- define "baton.model.volume" -}}
{{- $source := (index .root.Values.models .name).source -}}
- name: {{ include "baton.model.volumeName" . }}
{{- if eq $source.type "pvc" }}
  persistentVolumeClaim:
    claimName: {{ required (printf "models.%s.source.claimName is required for a PVC" .name) $source.claimName }}
    readOnly: true
{{- else if eq $source.type "hostPath" }}
  hostPath:
    path: {{ required (printf "models.%s.source.path is required for a hostPath" .name) $source.path }}
    type: Directory
{{- else }}
  emptyDir:
    {{- with $source.sizeLimit }}
    sizeLimit: {{ . }}
    {{- else }} {}
    {{- end }}
{{- end }}
{{- end -}}

{{/* For the service: the folder itself, read-only. */}}
{{- define "baton.model.mount" -}}
{{- $source := (index .root.Values.models .name).source -}}
- name: {{ include "baton.model.volumeName" . }}
  readOnly: true
{{- if has $source.type (list "pvc" "hostPath") }}
  mountPath: {{ include "baton.model.path" . }}
  {{- with $source.subPath }}
  subPath: {{ . }}
  {{- end }}
{{- else }}
  mountPath: {{ .base | default "/models" }}
{{- end }}
{{- end -}}

{{/* The container that fills the folder before the service starts: your command, or `baton provide-model` with the image's model. */}}
{{- define "baton.model.initContainers" -}}
{{- $source := (index .root.Values.models .name).source -}}
{{- if eq $source.type "init" }}
- name: fetch-{{ include "baton.model.volumeName" . }}
  image: {{ default (include "baton.image" (dict "root" .root "image" .root.Values.image.worker)) $source.image }}
  command: {{ required (printf "models.%s.source.command is required for type init" .name) $source.command | toJson }}
  env:
    - name: MODEL_DIR
      value: {{ include "baton.model.path" . }}
    {{- with $source.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $source.envFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- include "baton.model.initRest" . | nindent 2 }}
{{- end }}
{{- if eq $source.type "shipped" }}
- name: provide-{{ include "baton.model.volumeName" . }}
  image: {{ include "baton.image" (dict "root" .root "image" .root.Values.image.worker) }}
  imagePullPolicy: {{ .root.Values.image.worker.pullPolicy }}
  args: [provide-model, {{ include "baton.model.path" . }}]
  {{- include "baton.model.initRest" . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "baton.model.initRest" -}}
resources:
  requests: {cpu: 100m, memory: 256Mi}
  limits: {memory: 1Gi}
securityContext:
  {{- include "baton.containerSecurityContext" . | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: {{ include "baton.model.volumeName" . }}, mountPath: {{ .base | default "/models" }}}
{{- end -}}
