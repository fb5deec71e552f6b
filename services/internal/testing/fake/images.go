package fake

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imageSize of an image if no test has set its size.
const imageSize = 5 << 20

// Pull says what pulling an image does. The zero value succeeds at once.
type Pull struct {
	// Duration of the pull; it obeys its context.
	Duration time.Duration
	// Hang waits until the context ends.
	Hang bool
	// Err that the pull ends with.
	Err error
	// Auth judges the credentials given, nil when there were none.
	Auth func(*runtimeapi.AuthConfig) error
	// Size in bytes of the image; 0 is 5 MiB.
	Size uint64
	// User that the image names.
	User string
}

// imageStore is the runtime's image service.
type imageStore struct {
	runtimeapi.UnimplementedImageServiceServer

	mu      sync.Mutex
	present map[string]*runtimeapi.Image
	pulls   map[string]Pull
}

var _ runtimeapi.ImageServiceServer = (*imageStore)(nil)

func (s *imageStore) init() {
	s.present = map[string]*runtimeapi.Image{}
	s.pulls = map[string]Pull{}
}

// AddImage makes an image present under this name, and returns its id.
func (r *Runtime) AddImage(name string) string {
	r.images.mu.Lock()
	defer r.images.mu.Unlock()
	return r.images.add(name, 0)
}

// SetPull says what pulling this image, exactly so named, does.
func (r *Runtime) SetPull(image string, p Pull) {
	r.images.mu.Lock()
	defer r.images.mu.Unlock()
	r.images.pulls[image] = p
}

// add puts an image there. The caller holds mu.
func (s *imageStore) add(name string, size uint64) string {
	if size == 0 {
		size = imageSize
	}
	sum := sha256.Sum256([]byte(name))
	id := fmt.Sprintf("sha256:%x", sum)
	repo, _, _ := strings.Cut(name, "@")
	if i := strings.LastIndex(repo, ":"); i > strings.LastIndex(repo, "/") {
		repo = repo[:i]
	}
	s.present[id] = &runtimeapi.Image{
		Id: id, RepoTags: []string{name}, RepoDigests: []string{repo + "@" + id}, Size: size,
		Spec: &runtimeapi.ImageSpec{Image: name},
	}
	return id
}

// find returns the image of this id, tag or digest, or nil.
func (s *imageStore) find(ref string) *runtimeapi.Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, img := range s.present {
		if id == ref || slices.Contains(img.RepoTags, ref) || slices.Contains(img.RepoDigests, ref) {
			return clone(img)
		}
	}
	return nil
}

// ListImages implements CRI.
func (s *imageStore) ListImages(_ context.Context,
	req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return &runtimeapi.ListImagesResponse{Images: s.list(req.GetFilter())}, nil
}

// StreamImages implements CRI, one image a message.
func (s *imageStore) StreamImages(req *runtimeapi.StreamImagesRequest,
	out grpc.ServerStreamingServer[runtimeapi.StreamImagesResponse]) error {
	for _, img := range s.list(req.GetFilter()) {
		if err := out.Send(&runtimeapi.StreamImagesResponse{Images: []*runtimeapi.Image{img}}); err != nil {
			return err
		}
	}
	return nil
}

func (s *imageStore) list(f *runtimeapi.ImageFilter) []*runtimeapi.Image {
	if ref := f.GetImage().GetImage(); ref != "" {
		if img := s.find(ref); img != nil {
			return []*runtimeapi.Image{img}
		}
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*runtimeapi.Image
	for _, img := range s.present {
		all = append(all, clone(img))
	}
	slices.SortFunc(all, func(a, b *runtimeapi.Image) int { return strings.Compare(a.Id, b.Id) })
	return all
}

// ImageStatus implements CRI; an image that is not there is no error.
func (s *imageStore) ImageStatus(_ context.Context,
	req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	return &runtimeapi.ImageStatusResponse{Image: s.find(req.GetImage().GetImage())}, nil
}

// PullImage implements CRI, as SetPull says.
func (s *imageStore) PullImage(ctx context.Context,
	req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	name := req.GetImage().GetImage()
	s.mu.Lock()
	p := s.pulls[name]
	s.mu.Unlock()
	if p.Hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err := wait(ctx, p.Duration); err != nil {
		return nil, err
	}
	if p.Auth != nil {
		if err := p.Auth(req.GetAuth()); err != nil {
			return nil, err
		}
	}
	if p.Err != nil {
		return nil, p.Err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.add(name, p.Size)
	s.present[id].Username = p.User
	return &runtimeapi.PullImageResponse{ImageRef: id}, nil
}

// RemoveImage implements CRI: idempotent.
func (s *imageStore) RemoveImage(_ context.Context,
	req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	if img := s.find(req.GetImage().GetImage()); img != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.present, img.Id)
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// ImageFsInfo implements CRI.
func (s *imageStore) ImageFsInfo(context.Context,
	*runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var used uint64
	for _, img := range s.present {
		used += img.Size
	}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{
		Timestamp:  time.Now().UnixNano(),
		FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: "/var/lib/fake"},
		UsedBytes:  &runtimeapi.UInt64Value{Value: used},
		InodesUsed: &runtimeapi.UInt64Value{Value: uint64(len(s.present))},
	}}}, nil
}
