package twins

import (
	"encoding/json"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"sigs.k8s.io/yaml"

	"github.com/microlet/microlet/services/podsync/internal/sources/manifest"
)

// manifestFile is a manifest, and where it lies.
type manifestFile struct {
	Text []byte
	// File is false for one that was got from a URL.
	File bool
}

// manifestRead is what is made of it.
type manifestRead struct {
	Refused bool
	// Pod is the JSON of one that is not refused.
	Pod string
}

const manifestSource = "/etc/kubernetes/manifests/a.yaml"

var _ = register(Pair[manifestFile, manifestRead]{
	Name:     "manifest",
	Generate: drawManifest,
	Upstream: func(in manifestFile) manifestRead { return readManifest(kubeletReads(in)) },
	Ours:     func(in manifestFile) manifestRead { return readManifest(weRead(in)) },
	Branches: manifestBranches,
	Wanted: append([]string{"takes it"}, func() (refusals []string) {
		for _, part := range manifestParts {
			refusals = append(refusals, "refuses "+part)
		}
		return refusals
	}()...),
	Break: func(_ manifestFile, out *manifestRead) {
		out.Pod = strings.Replace(out.Pod, `"dnsPolicy":"ClusterFirst"`, `"dnsPolicy":"Default"`, 1)
	},
	Show: func(in manifestFile) string {
		_, theirs := kubeletReads(in)
		_, ours := weRead(in)
		text, err := yaml.JSONToYAML(in.Text)
		return fmt.Sprintf("%s%v\nthe kubelet says: %v\nours says: %v", text, err, theirs, ours)
	},
})

func kubeletReads(in manifestFile) (*v1.Pod, error) {
	return config.TwinDecode(in.Text, manifestSource, in.File, "node")
}

func weRead(in manifestFile) (*v1.Pod, error) {
	from := manifest.Origin{NodeName: "node", URL: manifestSource}
	if in.File {
		from.Path, from.URL = manifestSource, ""
	}
	return manifest.Parse(in.Text, from)
}

func readManifest(p *v1.Pod, err error) manifestRead {
	if err != nil {
		return manifestRead{Refused: true}
	}
	text, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	return manifestRead{Pod: string(text)}
}

// manifestParts are parts of a manifest, as the kubelet's errors name them.
var manifestParts = []string{
	"metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "references",
	"spec.activeDeadlineSeconds", "spec.affinity", "spec.containers", "spec.dnsConfig", "spec.dnsPolicy",
	"spec.ephemeralContainers", "spec.hostAliases", "spec.hostname", "spec.hostnameOverride", "spec.initContainers",
	"spec.nodeSelector", "spec.os", "spec.overhead", "spec.preemptionPolicy", "spec.priorityClassName",
	"spec.readinessGates", "spec.resources", "spec.restartPolicy", "spec.runtimeClassName", "spec.securityContext",
	"spec.shareProcessNamespace", "spec.tolerations", "spec.volumes",
	"ports", "env", "volumeMounts", "Probe", "lifecycle", "resources", "securityContext", "imagePullPolicy",
}

func manifestBranches(in manifestFile, out manifestRead) []string {
	if !out.Refused {
		return []string{"takes it"}
	}
	_, err := kubeletReads(in)
	var did []string
	for _, part := range manifestParts {
		what := part
		if part == "references" {
			what = "static pods may not"
		}
		if strings.Contains(err.Error(), what) {
			did = append(did, "refuses "+part)
		}
	}
	return did
}
