package node

import (
	"encoding/json"

	v1 "k8s.io/api/core/v1"

	imagegcv1 "github.com/microlet/microlet/proto/microlet/imagegc/v1"
)

// Bounds on the images of a Node. An entry of NODE/images may have 2 MiB, and the API server stores no object of 1.5
// MiB.
const (
	// maxImageNames is how many names of an image the Node has, as with the kubelet.
	maxImageNames = 5
	// maxImageName is more than a reference with a tag and a digest has.
	maxImageName = 1024
	// maxImageBytes bounds all images as JSON.
	maxImageBytes = 768 << 10
)

// setImages takes over the list of imagegc, as far as it is one that a Node can have. Without one, the Node keeps
// what it says.
func (s Settings) setImages(n *v1.Node, list *imagegcv1.Images) {
	if list == nil {
		return
	}
	images, room := []v1.ContainerImage{}, maxImageBytes
	for _, said := range list.GetImages() {
		if s.MaxImages >= 0 && len(images) == s.MaxImages {
			break
		}
		image := v1.ContainerImage{SizeBytes: max(said.GetSizeBytes(), 0)}
		for _, name := range said.GetNames() {
			if len(image.Names) < maxImageNames && len(name) <= maxImageName {
				image.Names = append(image.Names, name)
			}
		}
		text, err := json.Marshal(image)
		if err != nil || len(text) > room {
			break
		}
		room -= len(text)
		images = append(images, image)
	}
	n.Status.Images = images
}
