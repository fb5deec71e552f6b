package node

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	imagegcv1 "github.com/microlet/microlet/proto/microlet/imagegc/v1"
	"github.com/microlet/microlet/proto/subject"
)

// The API server refuses a Node that is too large, and then no address and no condition of the node is reported either.
func TestNoListOfImagesIsTooLargeForTheNode(t *testing.T) {
	full := func(name string) *imagegcv1.Images {
		list := &imagegcv1.Images{}
		for size := 0; size < subject.MaxNodeEntry-(64<<10); size += len(name) + 8 {
			list.Images = append(list.Images, &imagegcv1.Images_Image{Names: []string{name}, SizeBytes: -1})
		}
		return list
	}
	for name, list := range map[string]*imagegcv1.Images{
		"long names":    full(strings.Repeat("x", maxImageName)),
		"escaped names": full(strings.Repeat("\x01", 500)),
		"short names":   full("x"),
		"no names":      full(""),
	} {
		for _, most := range []int{-1, 50, 0} {
			n, _, _ := Settings{Name: "n", MaxImages: most}.Update(&v1.Node{}, Observed{Images: list}, now)
			data, err := json.Marshal(n)
			if err != nil {
				t.Fatal(err)
			}
			got := len(n.Status.Images)
			if len(data) > 1<<20 || most >= 0 && got != most || most < 0 && got < 100 {
				t.Errorf("%s: the Node has %d bytes and %d images of %d, and may have %d", name, len(data), got,
					len(list.GetImages()), most)
			}
			if got > 0 && n.Status.Images[0].SizeBytes != 0 {
				t.Errorf("%s: an image has %d bytes", name, n.Status.Images[0].SizeBytes)
			}
		}
	}
}

func TestNamesOfAnImageAreBounded(t *testing.T) {
	image := &imagegcv1.Images_Image{SizeBytes: 1, Names: []string{strings.Repeat("x", maxImageName+1)}}
	for i := range 10 {
		image.Names = append(image.Names, fmt.Sprint("n", i))
	}
	n, _, _ := Settings{Name: "n", MaxImages: 50}.Update(&v1.Node{},
		Observed{Images: &imagegcv1.Images{Images: []*imagegcv1.Images_Image{image}}}, now)
	if got, want := n.Status.Images[0].Names, image.GetNames()[1:maxImageNames+1]; !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
	}
}
