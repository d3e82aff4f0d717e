{{/* The name of everything. Names of nodes have at most 40 characters, of which `-node-` and a suffix are 14. */}}
{{- define "shardd.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 26 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 26 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 26 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "shardd.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "shardd.labels" -}}
{{ include "shardd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "shardd.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "shardd.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "shardd.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{- define "shardd.joinSecret" -}}
{{ default (printf "%s-join" (include "shardd.fullname" .)) .Values.secrets.join }}
{{- end -}}

{{- define "shardd.metricsSecret" -}}
{{ default (printf "%s-metrics" (include "shardd.fullname" .)) .Values.secrets.metrics }}
{{- end -}}

{{/* How long Kubernetes waits after SIGTERM: a draining node needs its grace and 10 s to end. */}}
{{- define "shardd.terminationSeconds" -}}
{{- if eq .Values.drain.onSigterm "drain" -}}
{{ add .Values.drain.graceSeconds 15 }}
{{- else -}}
15
{{- end -}}
{{- end -}}

{{/* The names under which clients reach a node: those of the Services that select it. */}}
{{- define "shardd.hosts" -}}
{{- $root := .root -}}
{{- $hosts := list -}}
{{- range .services -}}
{{- $hosts = concat $hosts (list . (printf "%s.%s" . $root.Release.Namespace) (printf "%s.%s.svc" . $root.Release.Namespace) (printf "%s.%s.svc.%s" . $root.Release.Namespace $root.Values.clusterDomain)) -}}
{{- end -}}
{{- join "," $hosts -}}
{{- end -}}

{{- define "shardd.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ .Values.runAsUser }}
runAsGroup: {{ .Values.runAsUser }}
fsGroup: {{ .Values.runAsUser }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "shardd.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{/* Probes. /v1/ready is 503 while a node fills its cache, so only readiness asks there. */}}
{{- define "shardd.probes" -}}
startupProbe:
  httpGet: { path: /v1/health, port: https, scheme: HTTPS }
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 90
livenessProbe:
  httpGet: { path: /v1/health, port: https, scheme: HTTPS }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: { path: /v1/ready, port: https, scheme: HTTPS }
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end -}}

{{/* The settings that all nodes share, as environment. */}}
{{- define "shardd.env" -}}
{{- $address := ternary "[$(POD_IP)]" "$(POD_IP)" .Values.ipv6 -}}
- name: POD_NAME
  valueFrom: { fieldRef: { fieldPath: metadata.name } }
- name: POD_IP
  valueFrom: { fieldRef: { fieldPath: status.podIP } }
- { name: SHARDD_ID, value: $(POD_NAME) }
- { name: SHARDD_HTTP, value: "{{ $address }}:7700" }
- { name: SHARDD_QUIC, value: "{{ $address }}:7701" }
- { name: SHARDD_TLS, value: "true" }
- { name: SHARDD_AUTH, value: tokens }
- { name: SHARDD_ON_SIGTERM, value: {{ .Values.drain.onSigterm }} }
- { name: SHARDD_GRACE, value: {{ .Values.drain.graceSeconds }}s }
- { name: SHARDD_LOG_FORMAT, value: {{ .Values.log.format }} }
- { name: SHARDD_LOG_LEVEL, value: {{ .Values.log.level }} }
{{- with .Values.store.bandwidth }}
- { name: SHARDD_STORE_BANDWIDTH, value: {{ . | quote }} }
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Pod fields that the first node and the others share. */}}
{{- define "shardd.pod" -}}
serviceAccountName: {{ include "shardd.serviceAccount" . }}
automountServiceAccountToken: false
# Variables that Kubernetes makes of Services would begin with SHARDD_, too.
enableServiceLinks: false
terminationGracePeriodSeconds: {{ include "shardd.terminationSeconds" . }}
securityContext:
  {{- include "shardd.podSecurityContext" . | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
