package images

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/imageref"
)

const defaultTag = "latest"

// name is an image's name, taken apart.
type name struct {
	// pull is what the runtime is asked for: as the user wrote it, with ":latest" put
	// behind if it has neither tag nor digest. It is not made longer than that, since
	// which registry a short name means is the runtime's to say.
	pull string
	// repository in full, such as "docker.io/library/busybox", for credentials.
	repository string
	// policy that holds when the container has none.
	policy v1.PullPolicy
}

func parseName(image string) (name, error) {
	named, err := imageref.ParseNormalized(image)
	if err != nil {
		return name{}, fmt.Errorf("couldn't parse image name %q: %w", image, err)
	}
	n := name{pull: image, repository: named.Name(), policy: v1.PullIfNotPresent}
	if named.Digest == "" && named.Tag == "" {
		n.pull = image + ":" + defaultTag
		n.policy = v1.PullAlways
	}
	if named.Tag == defaultTag {
		n.policy = v1.PullAlways
	}
	return n, nil
}

// PullName returns what the runtime is asked for when a pod names an image: with a tag or a digest. A name that cannot
// be read stays as it is.
func PullName(image string) string {
	n, err := parseName(image)
	if err != nil {
		return image
	}
	return n.pull
}
