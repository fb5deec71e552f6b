// Package imagelist publishes the images of the node for the Node's status.
package imagelist

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	imagegcv1 "github.com/microlet/microlet/proto/microlet/imagegc/v1"
	"github.com/microlet/microlet/proto/subject"
)

// maxNames is how many names of an image the Node's status has, as with the kubelet.
const maxNames = 5

// Unlimited is the value of nodeStatusMaxImages that bounds nothing.
const Unlimited = -1

// writer puts NODE/images.
type writer interface {
	Put(key string, m proto.Message)
	Complete()
}

// Publisher puts NODE/images when the images have changed. Only one goroutine at a time may use it.
type Publisher struct {
	writer writer
	most   int
	last   *imagegcv1.Images
}

// NewPublisher returns a publisher of the most largest images; Unlimited publishes all that the entry has room for.
func NewPublisher(w writer, most int) *Publisher { return &Publisher{writer: w, most: most} }

// Publish puts the images of the node.
func (p *Publisher) Publish(images []*runtimeapi.Image) {
	next := list(images, p.most)
	if p.last != nil && proto.Equal(p.last, next) {
		return
	}
	p.last = next
	p.writer.Put(subject.NodeImages, next)
	p.writer.Complete() // it is imagegc's only key
}

// list is the largest images first; of equal ones the order of their names is certain.
func list(images []*runtimeapi.Image, most int) *imagegcv1.Images {
	m := &imagegcv1.Images{}
	for _, image := range images {
		names := slices.Concat(image.GetRepoDigests(), image.GetRepoTags())
		m.Images = append(m.Images, &imagegcv1.Images_Image{
			Names: names[:min(len(names), maxNames)], SizeBytes: int64(min(image.GetSize(), 1<<62)),
		})
	}
	slices.SortFunc(m.Images, func(a, b *imagegcv1.Images_Image) int {
		return cmp.Or(cmp.Compare(b.GetSizeBytes(), a.GetSizeBytes()), slices.Compare(a.GetNames(), b.GetNames()))
	})
	if most != Unlimited && len(m.GetImages()) > most {
		m.Images = m.Images[:most]
	}
	// The entry has a bound, and so has the Node's object.
	for len(m.GetImages()) > 0 && proto.Size(m) > subject.MaxNodeEntry {
		m.Images = m.Images[:len(m.GetImages())*3/4]
	}
	return m
}
