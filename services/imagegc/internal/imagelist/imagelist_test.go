package imagelist

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	imagegcv1 "github.com/microlet/microlet/proto/microlet/imagegc/v1"
	"github.com/microlet/microlet/proto/subject"
)

type entries struct{ put []*imagegcv1.Images }

func (e *entries) Put(_ string, m proto.Message) {
	if list, ok := m.(*imagegcv1.Images); ok {
		e.put = append(e.put, list)
	}
}

func (e *entries) Complete() {}

func image(name string, size uint64, more ...string) *runtimeapi.Image {
	return &runtimeapi.Image{Id: name, Size: size, RepoDigests: []string{name + "@d"},
		RepoTags: append([]string{name}, more...)}
}

func TestPublish(t *testing.T) {
	e := &entries{}
	p := NewPublisher(e, 3)
	images := []*runtimeapi.Image{
		image("b", 10), image("a", 10), image("large", 30, "2", "3", "4", "5"), image("small", 1), image("least", 0),
	}
	p.Publish(images)
	slices.Reverse(images)
	p.Publish(images) // the same ones in another order
	if len(e.put) != 1 {
		t.Fatalf("put %d times", len(e.put))
	}
	got := e.put[0].GetImages()
	if len(got) != 3 || !slices.Equal(got[0].GetNames(), []string{"large@d", "large", "2", "3", "4"}) ||
		got[1].GetNames()[1] != "a" || got[2].GetNames()[1] != "b" || got[0].GetSizeBytes() != 30 {
		t.Errorf("put %v", got)
	}
	p.Publish(nil)
	if len(e.put) != 2 || len(e.put[1].GetImages()) != 0 {
		t.Errorf("then put %v", e.put)
	}
}

// The list fits into its entry, however many images there are.
func TestUnlimitedHasABound(t *testing.T) {
	e := &entries{}
	var images []*runtimeapi.Image
	for i := range 20_000 {
		images = append(images, image(fmt.Sprintf("registry.example/%s/%d", strings.Repeat("x", 200), i), uint64(i)))
	}
	NewPublisher(e, Unlimited).Publish(images)
	if got := e.put[0]; proto.Size(got) > subject.MaxNodeEntry || len(got.GetImages()) < 1000 ||
		got.GetImages()[0].GetSizeBytes() != 19_999 {
		t.Errorf("%d images in %d bytes", len(got.GetImages()), proto.Size(got))
	}
}
