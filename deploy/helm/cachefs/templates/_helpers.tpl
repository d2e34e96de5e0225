{{- /* Names, labels, and what several containers have in common. Rules of this chart: every
container but csi has no privilege; secrets are named, never written. */ -}}

{{- define "cachefs.name" -}}
{{- if contains "cachefs" .Release.Name -}}
{{- .Release.Name | trunc 24 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-cachefs" .Release.Name | trunc 24 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* The labels by which pods are selected: of the part .part. */ -}}
{{- define "cachefs.selector" -}}
app.kubernetes.io/name: cachefs
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "cachefs.labels" -}}
{{ include "cachefs.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "cachefs.metadata" -}}
name: {{ include "cachefs.name" .root }}-{{ .part }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "cachefs.labels" . | nindent 2 }}
{{- end -}}

{{- define "cachefs.podMetadata" -}}
labels:
  {{- include "cachefs.labels" . | nindent 2 }}
{{- with .root.Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "cachefs.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- /* HOST:PORT of the master, the same for every part: it stands in the names of volumes. */ -}}
{{- define "cachefs.master" -}}
{{- .Values.master.address | default (printf "%s-master.%s.svc:%d" (include "cachefs.name" .) .Release.Namespace (int .Values.master.port)) -}}
{{- end -}}

{{- /* What every pod has: .root, .spec (values with nodeSelector, affinity, tolerations), .user
(65532 or 0). */ -}}
{{- define "cachefs.podSpec" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  seccompProfile: {type: RuntimeDefault}
  {{- with .root.Values.seLinuxOptions }}
  seLinuxOptions: {{ toJson . }}
  {{- end }}
  {{- if eq (int .user) 65532 }}
  runAsUser: 65532
  runAsNonRoot: true
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  {{- else }}
  runAsUser: 0
  runAsGroup: 0
  {{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .spec.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .spec.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .spec.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- with .spec.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- if .spec.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- end -}}

{{- /* The image of a container. */ -}}
{{- define "cachefs.containerImage" -}}
image: {{ include "cachefs.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end -}}

{{- /* The rights of a container: none, but those of .add. */ -}}
{{- define "cachefs.rights" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
    {{- with .add }}
    add: {{ toJson . }}
    {{- end }}
{{- end -}}

{{- /* ---- secrets: by name only; files that the kubelet renews ---- */ -}}

{{- define "cachefs.serverEnv" -}}
- {name: CREDENTIALS_DIRECTORY, value: /etc/cachefs/token}
{{- if .Values.credentials.secretName }}
- {name: AWS_SHARED_CREDENTIALS_FILE, value: /etc/cachefs/credentials/credentials}
{{- end }}
{{- end -}}

{{- define "cachefs.tokenVolume" -}}
- name: token
  secret:
    secretName: {{ .Values.token.secretName }}
    defaultMode: 0400
    items: [{key: {{ .Values.token.key }}, path: token}]
{{- end -}}

{{- define "cachefs.credentialsVolume" -}}
{{- with .Values.credentials }}{{ if .secretName -}}
- name: credentials
  secret:
    secretName: {{ .secretName }}
    defaultMode: 0400
    items: [{key: {{ .key }}, path: credentials}]
{{- end }}{{ end }}
{{- range $at, $one := .Values.credentials.named }}
- name: credential-{{ $at }}
  secret: {secretName: {{ $one.secretName }}, defaultMode: 0400}
{{- end }}
{{- end -}}

{{- define "cachefs.serverMounts" -}}
- {name: token, mountPath: /etc/cachefs/token, readOnly: true}
{{- if .root.Values.credentials.secretName }}
- {name: credentials, mountPath: /etc/cachefs/credentials, readOnly: true}
{{- end }}
{{- range $at, $one := .root.Values.credentials.named }}
- {name: credential-{{ $at }}, mountPath: /etc/cachefs/credentials.d/{{ $one.name }}, readOnly: true}
{{- end }}
{{- if .secret }}
- {name: tls, mountPath: /etc/cachefs/tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "cachefs.tlsVolume" -}}
{{- if .secret -}}
- name: tls
  secret: {secretName: {{ .secret }}, defaultMode: 0400}
{{- end -}}
{{- end -}}

{{- define "cachefs.serverTlsArgs" -}}
{{- if .secret -}}
- --tls-cert=/etc/cachefs/tls/tls.crt
- --tls-key=/etc/cachefs/tls/tls.key
- --tls-ca=/etc/cachefs/tls/ca.crt
{{- end -}}
{{- end -}}

{{- /* What a client of the master needs: the controller and preload jobs. */ -}}
{{- define "cachefs.clientArgs" -}}
- --token-file=/etc/cachefs/token/token
- --home=/tmp/cachefs
{{- if .Values.tls.masterSecretName }}
- --tls-ca=/etc/cachefs/tls/ca.crt
{{- end }}
{{- end -}}

{{- define "cachefs.clientMounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: token, mountPath: /etc/cachefs/token, readOnly: true}
{{- if .Values.tls.masterSecretName }}
- {name: tls, mountPath: /etc/cachefs/tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "cachefs.clientVolumes" -}}
- {name: tmp, emptyDir: {}}
{{ include "cachefs.tokenVolume" . }}
{{- if .Values.tls.masterSecretName }}
- name: tls
  secret:
    secretName: {{ .Values.tls.masterSecretName }}
    defaultMode: 0400
    items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- end -}}

{{- define "cachefs.podNameEnv" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- end -}}

{{- define "cachefs.healthz" -}}
httpGet: {path: /healthz, port: {{ .port }}, scheme: {{ ternary "HTTPS" "HTTP" (not (empty .secret)) }}}
{{- end -}}

{{- /* A container that opens directories of the node, which the kubelet makes for root, to the
group of the servers. Root without a capability may give its own files to a group that it is in. */ -}}
{{- define "cachefs.directories" -}}
- name: directories
  {{- include "cachefs.containerImage" .root | nindent 2 }}
  command: [sh, -euc]
  args:
    - |
      for directory in "$@"; do
        if [ -O "$directory" ]; then
          chgrp 65532 "$directory"
          chmod 1770 "$directory"
        fi
      done
    - directories
    {{- range .paths }}
    - {{ . }}
    {{- end }}
  securityContext:
    runAsUser: 0
    runAsGroup: 0
    runAsNonRoot: false
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
  resources:
    requests: {cpu: 5m, memory: 8Mi}
{{- end -}}
