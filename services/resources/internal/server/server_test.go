package server

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/resources/internal/devices"
)

// fakeDevices records what it is asked for.
type fakeDevices struct {
	calls []string
	err   error
}

func (f *fakeDevices) note(call ...string) { f.calls = append(f.calls, strings.Join(call, " ")) }

func (f *fakeDevices) Register(_ context.Context, resource, endpoint string, versions []string) error {
	f.note(append([]string{"register", resource, endpoint}, versions...)...)
	return f.err
}

func (f *fakeDevices) Deregister(resource, endpoint string) { f.note("deregister", resource, endpoint) }

func (f *fakeDevices) Allocate(_ context.Context, p *v1.Pod, placed devices.Placed, running bool) (
	*resourcesv1.AllocateResponse, error) {
	call := []string{"allocate", p.Name}
	for _, uid := range placed.UIDs {
		call = append(call, string(uid))
	}
	if !placed.At.IsZero() {
		call = append(call, placed.At.Format("15:04"))
	}
	if running {
		call = append(call, "running")
	}
	f.note(call...)
	return &resourcesv1.AllocateResponse{}, f.err
}

func (f *fakeDevices) Prepare(_ context.Context, uid types.UID, container string) error {
	f.note("prepare", string(uid), container)
	return f.err
}

func (f *fakeDevices) Plugins() []*resourcesv1.ListPluginsResponse_Plugin {
	return []*resourcesv1.ListPluginsResponse_Plugin{{Resource: "example.com/a"}}
}

func pod(t *testing.T, uid types.UID) []byte {
	t.Helper()
	data, err := (&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: uid}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestCallsReachTheDevices(t *testing.T) {
	devices := &fakeDevices{}
	var asked []types.UID
	s := New(devices, func(uid types.UID) { asked = append(asked, uid) })
	_, err := s.Allocate(t.Context(), &resourcesv1.AllocateRequest{
		Pod: pod(t, "u"), PlacedPodUids: []string{"u", "v"}, Running: true,
		PlacedAt: &timestamppb.Timestamp{Seconds: 3600},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.PrepareContainer(t.Context(),
		&resourcesv1.PrepareContainerRequest{PodUid: "u", Container: "main"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RegisterPlugin(t.Context(), &resourcesv1.RegisterPluginRequest{
		Resource: "example.com/a", Endpoint: "/p/a.sock", Versions: []string{"v1beta1"},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.DeregisterPlugin(t.Context(),
		&resourcesv1.DeregisterPluginRequest{Resource: "example.com/a", Endpoint: "/p/a.sock"}); err != nil {
		t.Fatal(err)
	}
	list, err := s.ListPlugins(t.Context(), nil)
	if err != nil || len(list.GetPlugins()) != 1 {
		t.Errorf("plugins are %v, %v", list, err)
	}
	want := []string{
		"allocate web u v 01:00 running", "prepare u main", "register example.com/a /p/a.sock v1beta1",
		"deregister example.com/a /p/a.sock",
	}
	if !slices.Equal(devices.calls, want) || !slices.Equal(asked, []types.UID{"u"}) {
		t.Errorf("calls are %q, asked are %q", devices.calls, asked)
	}
}

func TestBadRequestsNameTheField(t *testing.T) {
	devices := &fakeDevices{}
	s := New(devices, func(types.UID) {})
	for want, call := range map[string]func(context.Context) error{
		"pod is no Pod": func(ctx context.Context) error {
			_, err := s.Allocate(ctx, &resourcesv1.AllocateRequest{Pod: []byte("\xff")})
			return err
		},
		"placed_at is no time": func(ctx context.Context) error {
			_, err := s.Allocate(ctx, &resourcesv1.AllocateRequest{Pod: pod(t, "u"),
				PlacedAt: &timestamppb.Timestamp{Nanos: -1}})
			return err
		},
		"pod has no metadata.uid": func(ctx context.Context) error {
			_, err := s.Allocate(ctx, &resourcesv1.AllocateRequest{Pod: pod(t, "")})
			return err
		},
		"container is empty": func(ctx context.Context) error {
			_, err := s.PrepareContainer(ctx, &resourcesv1.PrepareContainerRequest{PodUid: "u"})
			return err
		},
		"resource is empty": func(ctx context.Context) error {
			_, err := s.RegisterPlugin(ctx, &resourcesv1.RegisterPluginRequest{Endpoint: "/a"})
			return err
		},
		`endpoint is "a.sock"`: func(ctx context.Context) error {
			_, err := s.DeregisterPlugin(ctx, &resourcesv1.DeregisterPluginRequest{Resource: "e/a", Endpoint: "a.sock"})
			return err
		},
	} {
		err := call(t.Context())
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want InvalidArgument with %q", err, want)
		}
	}
	if len(devices.calls) != 0 {
		t.Errorf("bad requests became %q", devices.calls)
	}
}

// A plugin's error keeps its words; its code would speak of this server.
func TestErrorsOfPlugins(t *testing.T) {
	s := New(&fakeDevices{err: status.Error(codes.PermissionDenied, "no such card")}, func(types.UID) {})
	request := &resourcesv1.PrepareContainerRequest{PodUid: "u", Container: "main"}
	_, err := s.PrepareContainer(t.Context(), request)
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "no such card") {
		t.Errorf("error is %v", err)
	}
	over, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	s = New(&fakeDevices{err: errors.New("no answer")}, func(types.UID) {})
	if _, err := s.PrepareContainer(over, request); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("after the deadline: %v", err)
	}
}
