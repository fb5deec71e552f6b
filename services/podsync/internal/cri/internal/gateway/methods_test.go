package gateway

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/proto/role"
)

// granted is the design's table, method by method, written down a second time: a right
// that changes must change in both places.
var granted = map[string][]role.Role{
	"Version":               {role.PLEG, role.Prober, role.ImageGC, role.Stats, role.Evictor, role.NodeAPI},
	"Status":                {role.PLEG},
	"PodSandboxStatus":      {role.PLEG},
	"ContainerStatus":       {role.PLEG, role.NodeAPI},
	"ImageStatus":           {role.PLEG, role.ImageGC},
	"GetContainerEvents":    {role.PLEG},
	"ListPodSandbox":        {role.PLEG, role.Stats, role.Evictor, role.NodeAPI},
	"StreamPodSandboxes":    {role.PLEG, role.Stats, role.Evictor, role.NodeAPI},
	"ListContainers":        {role.PLEG, role.ImageGC, role.Stats, role.Evictor, role.NodeAPI},
	"StreamContainers":      {role.PLEG, role.ImageGC, role.Stats, role.Evictor, role.NodeAPI},
	"ListImages":            {role.PLEG, role.ImageGC, role.Stats, role.Evictor, role.NodeAPI},
	"StreamImages":          {role.PLEG, role.ImageGC, role.Stats, role.Evictor, role.NodeAPI},
	"ImageFsInfo":           {role.PLEG, role.ImageGC, role.Stats, role.Evictor},
	"RemoveImage":           {role.ImageGC},
	"ContainerStats":        {role.Stats, role.Evictor},
	"ListContainerStats":    {role.PLEG, role.Stats, role.Evictor},
	"StreamContainerStats":  {role.Stats, role.Evictor},
	"PodSandboxStats":       {role.Stats, role.Evictor},
	"ListPodSandboxStats":   {role.PLEG, role.Stats, role.Evictor},
	"StreamPodSandboxStats": {role.Stats, role.Evictor},
	"ListMetricDescriptors": {role.PLEG, role.Stats, role.Evictor},
	"ListPodSandboxMetrics": {role.PLEG, role.Stats, role.Evictor},

	"StreamPodSandboxMetrics": {role.Stats, role.Evictor},
	"ExecSync":                {role.Prober, role.NodeAPI},
	"Exec":                    {role.NodeAPI},
	"Attach":                  {role.NodeAPI},
	"PortForward":             {role.NodeAPI},
	"CheckpointContainer":     {role.NodeAPI},
}

// ask calls a method with an empty request, which reaches the runtime if it may.
func ask(t *testing.T, conn grpc.ClientConnInterface, method string, stream bool) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if !stream {
		return conn.Invoke(ctx, method, &frame{}, &frame{}, grpc.ForceCodecV2(frameCodec{}))
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method, grpc.ForceCodecV2(frameCodec{}))
	if err != nil {
		return err
	}
	if err := s.SendMsg(&frame{}); err != nil {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	return s.RecvMsg(&frame{})
}

func TestEveryMethodForEveryRole(t *testing.T) {
	b := newBench(t, anyone)
	// It would wait for an event; that it got as far as the runtime is all that is asked.
	b.fake.Fail("GetContainerEvents", status.Error(codes.Aborted, "no events today"))
	seen := 0
	for _, d := range descriptions {
		for _, r := range Roles() {
			for i, name := range methodNames(d) {
				method := "/" + d.ServiceName + "/" + name
				err := ask(t, b.byRole[r], method, i >= len(d.Methods))
				// What a role has may still be denied for what it asks, which here is nothing at all.
				denied := status.Code(err) == codes.PermissionDenied &&
					strings.Contains(err.Error(), "does not give it that method")
				if want := slices.Contains(granted[name], r); denied == want {
					t.Errorf("%s calls %s: %v; granted is %t", r, name, err, want)
				}
				if denied && (!strings.Contains(err.Error(), string(r)) || !strings.Contains(err.Error(), method)) {
					t.Errorf("the refusal does not name %s and %s: %v", r, method, err)
				}
				if Allowed(r, method) == denied {
					t.Errorf("%s and %s: the table and the wire differ", r, method)
				}
				seen++
			}
		}
	}
	if seen < 36*len(Roles()) {
		t.Errorf("only %d pairs were asked", seen)
	}
}

func TestTheTableNamesRealMethods(t *testing.T) {
	var real []string
	for _, d := range descriptions {
		real = append(real, methodNames(d)...)
	}
	for r, names := range methods {
		for _, name := range names {
			if !slices.Contains(real, name) {
				t.Errorf("%s is given %s, which CRI does not have", r, name)
			}
		}
	}
}

func TestWhatIsNewIsDenied(t *testing.T) {
	b := newBench(t, anyone)
	for _, method := range []string{"/runtime.v1.RuntimeService/FormatDisk", "/runtime.v2.RuntimeService/Version",
		"/other.Service/ListContainers"} {
		for _, r := range Roles() {
			if Allowed(r, method) {
				t.Errorf("%s may call %s", r, method)
			}
			if err := ask(t, b.byRole[r], method, false); status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s calls %s: %v", r, method, err)
			}
		}
	}
	for _, method := range []string{"", "/", "ListContainers", "//ListContainers"} {
		if Allowed(role.PLEG, method) {
			t.Errorf("%q is allowed", method)
		}
	}
}

func TestOnlyTheSocketsRoleAndRootMayConnect(t *testing.T) {
	const list = "/runtime.v1.RuntimeService/ListContainers"
	prober := newBench(t, func(int) []role.Role { return []role.Role{role.Prober} })
	if err := ask(t, prober.byRole[role.PLEG], list, false); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the prober on pleg's socket: %v", err)
	}
	root := newBench(t, func(int) []role.Role { return []role.Role{role.Podsync, role.Up} })
	if err := ask(t, root.byRole[role.PLEG], list, false); err != nil {
		t.Errorf("root on pleg's socket: %v", err)
	}
	if err := ask(t, root.byRole[role.PLEG], "/runtime.v1.RuntimeService/RunPodSandbox",
		false); status.Code(err) != codes.PermissionDenied {
		t.Errorf("root is more than pleg on pleg's socket: %v", err)
	}
}

func TestMetadataGoesOn(t *testing.T) {
	in := metadata.Pairs("traceparent", "00-1-2-01", ":authority", "localhost", "user-agent", "x", "grpc-timeout", "1S",
		"content-type", "application/grpc")
	out, ok := metadata.FromOutgoingContext(outgoing(metadata.NewIncomingContext(t.Context(), in)))
	if !ok || len(out) != 1 || out.Get("traceparent")[0] != "00-1-2-01" {
		t.Fatalf("got %v", out)
	}
}
