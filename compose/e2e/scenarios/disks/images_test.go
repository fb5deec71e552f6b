//go:build long

package disks

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

const (
	// layerSize is what an image has for itself.
	layerSize = 1 << 20
	// pulls are under way at one time.
	pulls = 4
)

// imageName is the n-th image's.
func imageName(n int) string { return fmt.Sprintf("registry.k8s.io/many/image-%d:1", n) }

// pushImages puts images into the registry that differ in one layer, and that run as the pause image does.
func pushImages(t *testing.T, s *scene.Scene, count int) {
	t.Helper()
	transport := &http.Transport{} // no proxy of the environment
	defer transport.CloseIdleConnections()
	mirrored := func(image string) name.Tag {
		_, rest, _ := strings.Cut(image, "/")
		tag, err := name.NewTag(s.Registry()+"/"+rest, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		return tag
	}
	base, err := remote.Image(mirrored(rig.PauseImage), remote.WithTransport(transport))
	if err != nil {
		t.Fatal(err)
	}
	pusher, err := remote.NewPusher(remote.WithTransport(transport))
	if err != nil {
		t.Fatal(err)
	}
	for n := range count {
		layer, err := random.Layer(layerSize, types.DockerLayer)
		var image v1.Image
		if err == nil {
			image, err = mutate.AppendLayers(base, layer)
		}
		if err == nil {
			err = pusher.Push(t.Context(), mirrored(imageName(n)), image)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// pullImages asks the runtime for images from..to-1, and returns their IDs by number.
func pullImages(t *testing.T, s *scene.Scene, from, to int) map[int]string {
	t.Helper()
	conn, err := s.DialRuntime()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := runtimeapi.NewImageServiceClient(conn)
	ids := make([]string, to-from)
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(pulls)
	for n := from; n < to; n++ {
		group.Go(func() error {
			spec := &runtimeapi.ImageSpec{Image: imageName(n)}
			if _, err := client.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec}); err != nil {
				return fmt.Errorf("pull %s: %w", spec.Image, err)
			}
			status, err := client.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
			if err != nil {
				return fmt.Errorf("status of %s: %w", spec.Image, err)
			}
			ids[n-from] = status.GetImage().GetId()
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	all := map[int]string{}
	for i, id := range ids {
		all[from+i] = id
	}
	return all
}

// present are the IDs of the runtime's images.
func present(t *testing.T, s *scene.Scene) map[string]bool {
	t.Helper()
	conn, err := s.DialRuntime()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := context.WithoutCancel(t.Context())
	resp, err := runtimeapi.NewImageServiceClient(conn).ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, image := range resp.GetImages() {
		ids[image.GetId()] = true
	}
	return ids
}

// age is what imagegc's file says of an image, in nanoseconds for which the node ran.
type age struct {
	Detected time.Duration  `json:"detected"`
	LastUsed *time.Duration `json:"lastUsed"`
}

// recordedAges reads imagegc's file.
func recordedAges(t *testing.T, s *scene.Scene) map[string]age {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(s.ImageGCStateDir(), "ages.json"))
	if os.IsNotExist(err) {
		return nil
	}
	var file struct {
		Images map[string]age `json:"images"`
	}
	if err == nil {
		err = json.Unmarshal(data, &file)
	}
	if err != nil {
		t.Fatalf("imagegc's file: %v", err) // it is replaced, and never half written
	}
	return file.Images
}

// imageFilesystem is containerd's.
func imageFilesystem(s *scene.Scene) string { return filepath.Join(s.Dir(), "containerd") }

// usedPercent is how full the images' filesystem is.
func usedPercent(t *testing.T, s *scene.Scene) float64 {
	t.Helper()
	capacity, available := statfs(t, s)
	return 100 - 100*float64(available)/float64(capacity)
}

func statfs(t *testing.T, s *scene.Scene) (capacity, available int64) {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(imageFilesystem(s), &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize
}

// fill makes the images' filesystem that full by a file that is no image.
func fill(t *testing.T, s *scene.Scene, percent int64) {
	t.Helper()
	file := filepath.Join(imageFilesystem(s), "ballast")
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	capacity, available := statfs(t, s)
	more := available - capacity*(100-percent)/100
	info, err := f.Stat()
	if err == nil && more > 0 {
		err = unix.Fallocate(int(f.Fd()), 0, info.Size(), more)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := usedPercent(t, s); got < float64(percent)-1 {
		t.Fatalf("the filesystem is %.1f %% full, want %d %%", got, percent)
	}
}
