package podgen

import (
	"bufio"
	"os"
	"strings"
	"testing"
)

// unset are supported fields that no pod here can set, and why. One stands for all that is in it.
var unset = map[string]string{
	"spec.containers.probe.grpc.mode":                 "the API server drops it while its gate is off",
	"spec.containers.probe.httpGet.protocol":          "the API server drops it while its gate is off",
	"spec.containers.lifecycle.hook.httpGet.protocol": "the API server drops it while its gate is off",
	"spec.overhead":       "the API server takes it from the runtime class",
	"spec.serviceAccount": "the API server keeps it as serviceAccountName is",
	"spec.containers.securityContext.appArmorProfile.localhostProfile": "it needs a kernel with AppArmor and a " +
		"profile in it",
	"spec.securityContext.appArmorProfile.localhostProfile": "it needs a kernel with AppArmor and a profile in it",
	"spec.volumes.csi":                              "it needs a driver on the node",
	"spec.volumes.ephemeral":                        "it needs a driver that makes volumes",
	"spec.volumes.nfs":                              "it needs a server and a kernel with NFS",
	"spec.volumes.persistentVolumeClaim":            "it needs a PersistentVolume for each pod; TestClaims has them",
	"spec.volumes.projected.sources.podCertificate": "it needs a signer",
	"spec.containers.volumeDevices":                 "it needs a block device for each pod",
	"spec.volumes.image":                            "it needs an image of files",
}

func whyUnset(field string) string {
	for path := field; path != ""; path = path[:max(strings.LastIndex(path, "."), 0)] {
		if why := unset[path]; why != "" {
			return why
		}
	}
	return ""
}

// TestEverySupportedFieldIsCovered compares the generator with the page of supported fields.
func TestEverySupportedFieldIsCovered(t *testing.T) {
	claimed := Claimed(t)
	for seed := range uint64(20) {
		pods, _ := make100(seed)
		covered := map[string]bool{}
		for _, f := range Fields(pods...) {
			covered[folded(f)] = true
		}
		for _, f := range claimed {
			if !covered[f] && whyUnset(f) == "" {
				t.Errorf("seed %d: no pod sets %s", seed, f)
			}
			if covered[f] && whyUnset(f) != "" {
				t.Errorf("seed %d: %s is set, though %s", seed, f, whyUnset(f))
			}
		}
	}
}

func Claimed(t *testing.T) []string {
	f, err := os.Open("../../../../docs/pod-fields.md")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []string
	section := ""
	for s := bufio.NewScanner(f); s.Scan(); {
		if title, ok := strings.CutPrefix(s.Text(), "## "); ok {
			section = title
		}
		if field, ok := strings.CutPrefix(s.Text(), "* `"); ok && section == "Supported" {
			all = append(all, folded(strings.TrimSuffix(field, "`")))
		}
	}
	return all
}

var folds = strings.NewReplacer(
	"spec.initContainers.", "spec.containers.",
	"livenessProbe", "probe", "readinessProbe", "probe", "startupProbe", "probe",
	"postStart", "hook", "preStop", "hook",
)

func folded(field string) string { return folds.Replace(field) }
