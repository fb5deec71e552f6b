package manifest

import (
	"strings"
	"testing"
)

// TestDecisions are decisions of the kubelet that compose/tools/twins has found to be easily missed: of a pod with this
// in its metadata and its spec, and in its one container. An empty field is a pod that is taken.
func TestDecisions(t *testing.T) {
	for name, test := range map[string]struct{ metadata, spec, container, field string }{
		"windows options without an OS": {spec: `"securityContext":{"windowsOptions":{}}`},
		"windows options of Linux": {
			spec: `"os":{"name":"linux"},"securityContext":{"windowsOptions":{}}`, field: "securityContext.windowsOptions",
		},
		"empty seccomp profile": {
			container: `"securityContext":{"seccompProfile":{"type":"Localhost","localhostProfile":""}}`,
		},
		"blank AppArmor profile": {
			container: `"securityContext":{"appArmorProfile":{"type":"Localhost","localhostProfile":" "}}`,
			field:     "appArmorProfile.localhostProfile",
		},
		"AppArmor profile with a space": {
			container: `"securityContext":{"appArmorProfile":{"type":"Localhost","localhostProfile":" a"}}`,
			field:     "appArmorProfile.localhostProfile",
		},
		"pull secret without a name": {spec: `"imagePullSecrets":[{}]`},
		"host port of an init container": {
			spec: `"hostNetwork":true,"initContainers":[{"name":"i","image":"i","ports":[{"containerPort":1,"hostPort":2}]}]`,
		},
		"affinity that is no number": {spec: nodeAffinity(`"matchExpressions":[{"key":"a","operator":"Gt","values":["b"]}]`)},
		"affinity without values": {
			spec: nodeAffinity(`"matchExpressions":[{"key":"a","operator":"In"}]`), field: "values",
		},
		"affinity with values too many": {
			spec: nodeAffinity(`"matchExpressions":[{"key":"a","operator":"Exists","values":["b"]}]`), field: "values",
		},
		"affinity of a field": {
			spec:  nodeAffinity(`"matchFields":[{"key":"metadata.uid","operator":"In","values":["b"]}]`),
			field: "matchFields[0].key",
		},
		"preferred affinity": {
			spec: `"affinity":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"preference":
				{"matchExpressions":[{"key":"","operator":"Exists"}]}}]}}`, field: "preference.matchExpressions[0].key",
		},
		"mapped address of an alias": {spec: `"hostAliases":[{"ip":"::ffff:10.0.0.1"}]`, field: "hostAliases[0].ip"},
		"zone of a name server":      {spec: `"dnsConfig":{"nameservers":["fe80::1%eth0"]}`, field: "nameservers[0]"},
		"host name on the host network": {
			spec: `"hostNetwork":true,"hostnameOverride":"a"`, field: "hostnameOverride",
		},
		"host name as FQDN": {spec: `"setHostnameAsFQDN":true,"hostnameOverride":"a"`, field: "hostnameOverride"},
		"long host name":    {spec: `"hostnameOverride":"` + strings.Repeat("a.", 33) + `a"`, field: "hostnameOverride"},
		"sysctl of the host": {
			spec: `"hostIPC":true,"securityContext":{"sysctls":[{"name":"kernel/shmall"}]}`, field: "sysctls[0]",
		},
		"sysctl in two spellings": {
			spec: `"securityContext":{"sysctls":[{"name":"net/a"},{"name":"net.a"}]}`,
		},
		"overhead":         {spec: `"overhead":{"cpu":"-1"}`, field: "overhead"},
		"pages of the pod": {spec: `"resources":{"limits":{"hugepages-2Mi":"2Mi"}}`, field: "spec.resources"},
		"pages in part": {
			container: `"resources":{"limits":{"cpu":"1","hugepages-2Mi":"1Mi"}}`,
			field:     "limits[hugepages-2Mi]",
		},
		"quota as resource": {
			container: `"resources":{"limits":{"requests.a.b/c":"1"}}`,
			field:     "limits[requests.a.b/c]",
		},
		"file without a volume": {
			container: `"env":[{"name":"A","valueFrom":{"fileKeyRef":{"volumeName":"v","path":"p","key":"k"}}}]`,
			field:     "fileKeyRef.volumeName",
		},
		"file without a key": {
			spec:      `"volumes":[{"name":"v","emptyDir":{}}]`,
			container: `"env":[{"name":"A","valueFrom":{"fileKeyRef":{"volumeName":"v","path":"p","key":""}}}]`,
			field:     "fileKeyRef.key",
		},
		"rule without a policy": {
			container: `"restartPolicyRules":[{"action":"Restart","exitCodes":{"operator":"In","values":[1]}}]`,
			field:     "restartPolicy",
		},
		"rule without codes": {
			container: `"restartPolicy":"Never","restartPolicyRules":[{"action":"Restart"}]`,
			field:     "restartPolicyRules[0].exitCodes",
		},
		"rule of another action": {
			container: `"restartPolicy":"Never","restartPolicyRules":[{"action":"Stop","exitCodes":{"operator":"In"}}]`,
			field:     "restartPolicyRules[0].action",
		},
		"stop signal": {
			spec: `"os":{"name":"linux"}`, container: `"lifecycle":{"stopSignal":"SIGRTMIN+16"}`,
			field: "lifecycle.stopSignal",
		},
		"real-time stop signal": {spec: `"os":{"name":"linux"}`, container: `"lifecycle":{"stopSignal":"SIGRTMIN+15"}`},
		"finalizer":             {metadata: `"finalizers":["a"]`, field: "metadata.finalizers"},
		"seccomp annotation": {
			metadata: `"annotations":{"seccomp.security.alpha.kubernetes.io/pod":"a"}`, field: "metadata.annotations",
		},
		"AppArmor annotation of none": {
			metadata: `"annotations":{"container.apparmor.security.beta.kubernetes.io/d":"unconfined"}`,
			field:    "metadata.annotations",
		},
		"AppArmor annotation that differs": {
			metadata:  `"annotations":{"container.apparmor.security.beta.kubernetes.io/c":"unconfined"}`,
			container: `"securityContext":{"appArmorProfile":{"type":"RuntimeDefault"}}`, field: "appArmorProfile",
		},
	} {
		t.Run(name, func(t *testing.T) {
			data := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"` + comma(test.metadata) +
				`},"spec":{"containers":[{"name":"c","image":"i"` + comma(test.container) + `}]` + comma(test.spec) + `}}`
			_, err := Parse([]byte(data), origin("a"))
			switch {
			case test.field == "" && err != nil:
				t.Errorf("refused: %v", err)
			case test.field != "" && (err == nil || !strings.Contains(err.Error(), test.field)):
				t.Errorf("error %v, want one of %s", err, test.field)
			}
		})
	}
}

// TestTolerationOfEverythingHasNoEnd is as the kubelet has it: an eviction would end the mirror, and not the pod.
func TestTolerationOfEverythingHasNoEnd(t *testing.T) {
	p, err := Parse([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"c",
		"image":"i"}],"tolerations":[{"operator":"Exists","effect":"NoExecute","tolerationSeconds":5}]}}`), origin("a"))
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Spec.Tolerations; len(got) != 1 || got[0].TolerationSeconds != nil {
		t.Errorf("tolerations %v, want one without an end", got)
	}
}

func comma(part string) string {
	if part == "" {
		return ""
	}
	return "," + part
}

func nodeAffinity(term string) string {
	return `"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{` + term +
		`}]}}}`
}
