package manifest

import (
	"strings"
	"testing"
)

// TestWhatIsNoPod has each misfit named by its field, its value and what would be right.
func TestWhatIsNoPod(t *testing.T) {
	const header = "apiVersion: v1\nkind: Pod\n"
	for spec, want := range map[string]string{
		"spec: {containers: {a: b}}": "spec.containers is an object: write a list",
		"metadata: {name: 3}":        "metadata.name is a number: write a string, in quotes if it looks like a number",
		"metadata: {labels: [a]}":    "metadata.labels is a list: write an object",
		"spec: hello":                "spec is a string: write an object",
		"spec: {hostNetwork: soon}":  "spec.hostNetwork is a string: write true or false",
		"spec: {nodeName: true}":     "spec.nodeName is true or false: write a string, in quotes if it looks like a number",
		"spec: {containers: [{ports: [{containerPort: 99999999999}]}]}": "spec.containers.ports.containerPort is " +
			"99999999999: write a whole number up to 2147483647",
		"spec: {containers: [{livenessProbe: {httpGet: {port: {}}}}]}": "spec.containers.livenessProbe.httpGet.port is " +
			"an object: write",
		"spec: {terminationGracePeriodSeconds: long}": "spec.terminationGracePeriodSeconds is a string: write a whole number",
		"spec: {containers: [{name: c}, {resources: {limits: {memory: 1Gi, cpu: 100 m}}}]}": "spec.containers[1].resources." +
			`limits.cpu is "100 m": write a quantity, such as 100m or 64Mi`,
		"spec: {volumes: [{emptyDir: {sizeLimit: much}}]}": `spec.volumes[0].emptyDir.sizeLimit is "much": write a quantity`,
		"spec: {hostUserz: true, containers: [{imge: x}]}": `unknown field "spec.containers[0].imge", unknown field ` +
			`"spec.hostUserz": correct the name, or remove it`,
		"metadata: {creationTimestamp: soon}": ": correct the value",
	} {
		_, err := Parse([]byte(header+spec), Origin{NodeName: "node", Strict: true})
		if err == nil || !strings.Contains(err.Error(), "not a pod: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", spec, err, want)
			continue
		}
		for _, word := range []string{"Go struct", "unmarshal", "decoding"} {
			if strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v has %q, which is a decoder's", spec, err, word)
			}
		}
	}
}

// TestServersOfNFS: what is no server is refused with the field, the value and what would be right.
func TestServersOfNFS(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n" +
		"  containers: [{name: c, image: i}]\n  volumes: [{name: v, nfs: {server: SERVER, path: /p}}]\n"
	for server, want := range map[string]string{
		`"-s"`:    `spec.volumes[0].nfs.server: Invalid value: "-s": must be the name or the IP address of a server`,
		`"s/x"`:   `spec.volumes[0].nfs.server: Invalid value: "s/x": must be the name or the IP address of a server`,
		`"s x"`:   `spec.volumes[0].nfs.server: Invalid value: "s x": must be the name or the IP address of a server`,
		"s":       "",
		"fd00::1": "",
	} {
		_, err := Parse([]byte(strings.ReplaceAll(pod, "SERVER", server)), Origin{NodeName: "node", Strict: true})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", server, err, want)
		}
	}
}
