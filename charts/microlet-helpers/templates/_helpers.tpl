{{- define "helpers.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "helpers.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "helpers.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "helpers.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "helpers.image" -}}
{{- $i := .Values.image -}}
{{- if $i.digest }}{{ $i.repository }}@{{ $i.digest }}{{ else }}{{ $i.repository }}:{{ $i.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "helpers.labels" -}}
app.kubernetes.io/part-of: microlet
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | trunc 63 | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- end }}

{{/* The identities of the services: proto/role has them, and a test of the chart compares them. */}}
{{- define "helpers.identities" -}}
prober: {uid: 47104}
imagegc: {uid: 47105}
stats: {uid: 47106, capabilities: [DAC_READ_SEARCH]}
evictor: {uid: 47107, capabilities: [DAC_READ_SEARCH, SYSLOG]}
nodeapi: {uid: 47108, groups: [47109]}
{{- end }}

{{/* The folders of the node that a service needs beside the runtime folder, and whether it may write to them. */}}
{{- define "helpers.folders" -}}
prober: {}
imagegc:
  images: {path: {{ .Values.runtimeRootDir }}}
  state: {path: {{ .Values.imagegcStateDir }}, write: true}
stats:
  images: {path: {{ .Values.runtimeRootDir }}}
  pod-logs: {path: {{ .Values.podLogsDir }}}
  cgroups: {path: /sys/fs/cgroup}
  root: {path: {{ .Values.rootDir }}, propagation: HostToContainer}
  machine-id: {path: /etc/machine-id, type: File}
  os-release: {path: /etc/os-release, type: File}
evictor:
  images: {path: {{ .Values.runtimeRootDir }}}
  pod-logs: {path: {{ .Values.podLogsDir }}}
  cgroups: {path: /sys/fs/cgroup}
  root: {path: {{ .Values.rootDir }}, propagation: HostToContainer}
nodeapi:
  pod-logs: {path: {{ .Values.podLogsDir }}}
{{- end }}

{{/* What the pods of a role have in common: of its DaemonSet and of its test. */}}
{{- define "helpers.podSecurity" -}}
{{- if .identity.capabilities }}
# "microlet run-as" becomes the user of the service: no user but root gets capabilities from a container runtime.
runAsUser: 0
{{- else }}
runAsUser: {{ .identity.uid }}
{{- end }}
runAsGroup: {{ if .identity.capabilities }}0{{ else }}47100{{ end }}
{{- with .identity.groups }}
supplementalGroups: {{ toJson . }}
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "helpers.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- with .identity.capabilities }}
  add: {{ toJson (concat (list "SETUID" "SETGID" "SETPCAP") .) }}
  {{- end }}
{{- end }}

{{/* The command before the subcommand: microlet, or microlet run-as. */}}
{{- define "helpers.program" -}}
{{- if .identity.capabilities }}{{ toJson (list "microlet" "run-as" .role) }}{{ else }}{{ toJson (list "microlet") }}{{ end }}
{{- end }}

{{- define "helpers.peerArgs" -}}
{{- toJson (list (printf "--runtime-dir=%s" .Values.runtimeDir) (printf "--peer-cgroups=%s" (join "," .Values.peerCgroups))) }}
{{- end }}

{{/* The command that asks the service whether it does its work. */}}
{{- define "helpers.health" -}}
{{- $program := include "helpers.program" . | fromJsonArray -}}
{{- toJson (concat $program (list "health" .role) (include "helpers.peerArgs" . | fromJsonArray)) }}
{{- end }}

{{/*
The endpoints of a monitor: .Values is its part of the values, .port says how the port is named, and with .ownToken the
token is that of the Prometheus.
*/}}
{{- define "helpers.endpoints" -}}
{{- range list "/metrics" "/metrics/cadvisor" "/metrics/resource" "/metrics/probes" }}
- path: {{ . }}
  {{- toYaml $.port | nindent 2 }}
  scheme: https
  interval: {{ $.Values.interval }}
  honorTimestamps: false
  # The certificate of a node names its address, and need not be signed by a CA that Prometheus knows.
  tlsConfig: {insecureSkipVerify: true}
  {{- with $.Values.bearerTokenSecret }}
  {{- if .name }}
  bearerTokenSecret: {name: {{ .name }}, key: {{ .key }}}
  {{- end }}
  {{- end }}
  {{- if $.ownToken }}
  bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
  {{- end }}
  relabelings:
  # The operator gives each target these labels, and series have their own of these names. With honorLabels a series could
  # name another node too, by the label instance.
  - {action: labeldrop, regex: namespace|service|pod|container}
  {{- with $.Values.nodes }}
  - {action: keep, sourceLabels: [__meta_kubernetes_endpoint_address_target_name], regex: {{ . | quote }}}
  {{- end }}
  # The alerts name this job.
  - {targetLabel: job, replacement: {{ eq . "/metrics" | ternary "microlet" (printf "microlet%s" (. | replace "/" "-")) }}}
{{- end }}
{{- end }}
