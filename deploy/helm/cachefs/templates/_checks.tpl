{{- /* What the schema cannot check. Each failure is one line: the cause and what to do. */ -}}

{{- /* Returns a size (20GiB, 512MiB, 1TiB) in MiB. */ -}}
{{- define "cachefs.mebibytes" -}}
{{- $number := regexFind "^[0-9]+" . | int64 -}}
{{- $unit := regexFind "[A-Z].*$" . -}}
{{- if eq $unit "TiB" -}}{{ mul $number 1048576 }}
{{- else if eq $unit "GiB" -}}{{ mul $number 1024 }}
{{- else -}}{{ $number }}
{{- end -}}
{{- end -}}

{{- /* Returns a quantity of Kubernetes (4Gi, 512Mi, 1Ti, or bytes) in MiB. */ -}}
{{- define "cachefs.quantityMebibytes" -}}
{{- $text := toString . -}}
{{- if not (regexMatch "^[0-9]+(Mi|Gi|Ti)?$" $text) -}}
{{- fail (printf "worker.resources.limits.memory: %s cannot be compared; write it in Mi, Gi or Ti" $text) -}}
{{- end -}}
{{- if regexMatch "i$" $text -}}{{ include "cachefs.mebibytes" (printf "%sB" $text) }}
{{- else -}}{{ div (int64 $text) 1048576 }}
{{- end -}}
{{- end -}}

{{- /* Returns the MiB of all tiers in memory. */ -}}
{{- define "cachefs.memoryTiers" -}}
{{- $sum := 0 -}}
{{- range .Values.worker.tiers -}}
{{- if eq .type "mem" -}}{{- $sum = add $sum (include "cachefs.mebibytes" .size) -}}{{- end -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{- define "cachefs.workerMemory" -}}
{{- add (include "cachefs.memoryTiers" .) (include "cachefs.mebibytes" .Values.worker.memoryBudget) -}}
{{- end -}}

{{- define "cachefs.checkMemory" -}}
{{- $budget := include "cachefs.mebibytes" .Values.worker.memoryBudget | int64 -}}
{{- if lt $budget 512 -}}
{{- fail (printf "worker.memoryBudget: %s is too little for a worker beside its tiers; give at least 512MiB" .Values.worker.memoryBudget) -}}
{{- end -}}
{{- $needed := include "cachefs.workerMemory" . | int64 -}}
{{- $resources := .Values.worker.resources -}}
{{- range $kind := list "limits" "requests" -}}
{{- $given := dig $kind "memory" "" $resources -}}
{{- if $given -}}
{{- $mebibytes := include "cachefs.quantityMebibytes" $given | int64 -}}
{{- if and (eq $kind "limits") (lt $mebibytes $needed) -}}
{{- fail (printf "worker.resources.limits.memory: %s is less than the tiers in memory and worker.memoryBudget together; give at least %dMi, or leave it out" (toString $given) $needed) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cachefs.checkTiers" -}}
{{- $paths := dict -}}
{{- range $number, $tier := .Values.worker.tiers -}}
{{- if eq (empty $tier.hostPath) (empty $tier.claim) -}}
{{- fail (printf "worker.tiers[%d]: a tier is at a hostPath or on a claim; give one of them" $number) -}}
{{- end -}}
{{- if and (eq $tier.type "mem") (empty $tier.hostPath) -}}
{{- fail (printf "worker.tiers[%d]: a tier in memory is on a tmpfs of the node; give its hostPath, such as /dev/shm/cachefs" $number) -}}
{{- end -}}
{{- with $tier.hostPath -}}
{{- if hasKey $paths . -}}
{{- fail (printf "worker.tiers[%d]: %s is the hostPath of another tier; give each tier its own" $number .) -}}
{{- end -}}
{{- $_ := set $paths . true -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cachefs.checkSecrets" -}}
{{- $tls := .Values.tls -}}
{{- if ne (empty $tls.masterSecretName) (empty $tls.workerSecretName) -}}
{{- fail "tls: only one of masterSecretName and workerSecretName is given; TLS needs the certificates of both" -}}
{{- end -}}
{{- end -}}

{{- define "cachefs.checkPreload" -}}
{{- $names := dict -}}
{{- range $number, $one := .Values.preload -}}
{{- if hasKey $names $one.name -}}
{{- fail (printf "preload[%d]: %s is the name of another entry; give each entry its own" $number $one.name) -}}
{{- end -}}
{{- $_ := set $names $one.name true -}}
{{- end -}}
{{- end -}}

{{- define "cachefs.check" -}}
{{- include "cachefs.checkTiers" . -}}
{{- include "cachefs.checkMemory" . -}}
{{- include "cachefs.checkSecrets" . -}}
{{- include "cachefs.checkPreload" . -}}
{{- end -}}
