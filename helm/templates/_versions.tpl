{{/* The version of an API in the cluster: 1.20 has the older ones only. */}}

{{- define "baton.hpa.apiVersion" -}}
{{- ternary "autoscaling/v2" "autoscaling/v2beta2" (semverCompare ">=1.23.0-0" .Capabilities.KubeVersion.Version) -}}
{{- end -}}

{{- define "baton.pdb.apiVersion" -}}
{{- ternary "policy/v1" "policy/v1beta1" (semverCompare ">=1.21.0-0" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
