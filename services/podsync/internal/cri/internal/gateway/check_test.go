package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/podsync/internal/cri/internal/containers"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

const (
	execSync   = "/runtime.v1.RuntimeService/ExecSync"
	checkpoint = "/runtime.v1.RuntimeService/CheckpointContainer"
)

// send sends bytes as a request.
func send(t *testing.T, conn grpc.ClientConnInterface, method string, request []byte) error {
	t.Helper()
	return conn.Invoke(t.Context(), method, &frame{data: request}, &frame{}, grpc.ForceCodecV2(frameCodec{}))
}

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestOnlyDeclaredProbesRun(t *testing.T) {
	b := newBench(t, anyone)
	b.index.SetState("u1", &pod.State{Containers: []pod.Container{
		{ID: b.container, Name: "web"}, {ID: "second", Name: "other"}, {ID: "third", Name: "removed from the spec"},
	}})
	for name, test := range map[string]struct {
		container string
		timeout   int64
		command   []string
		denied    string // the reason; empty: it reaches the runtime
	}{
		"a liveness probe":               {b.container, 5, []string{"hello"}, ""},
		"for less than its timeout":      {b.container, 1, []string{"hello"}, ""},
		"with a variable":                {b.container, 1, []string{"cat", "/tmp/x"}, ""},
		"with the variable's name":       {b.container, 1, []string{"cat", "$(WHERE)"}, reasonCommand},
		"no probe":                       {b.container, 1, []string{"sh", "-c", "id"}, reasonCommand},
		"one more word":                  {b.container, 1, []string{"hello", "you"}, reasonCommand},
		"one word less":                  {b.container, 1, []string{"cat"}, reasonCommand},
		"words joined":                   {b.container, 1, []string{"cat /tmp/x"}, reasonCommand},
		"nothing":                        {b.container, 1, nil, reasonCommand},
		"another container's":            {b.container, 1, []string{"other"}, reasonCommand},
		"one's own in another container": {"second", 1, []string{"hello"}, reasonCommand},
		"a container without a spec":     {"third", 1, []string{"hello"}, reasonContainer},
		"no pod's container":             {"0123456789abcdef", 1, []string{"hello"}, reasonContainer},
		"the beginning of an id":         {b.container[:8], 1, []string{"hello"}, reasonContainer},
		"no id":                          {"", 1, []string{"hello"}, reasonContainer},
		"for ever":                       {b.container, 0, []string{"hello"}, reasonTimeout},
		"for a negative time":            {b.container, -1, []string{"hello"}, reasonTimeout},
		"for too long":                   {b.container, 6, []string{"hello"}, reasonTimeout},
		"for another probe's time":       {b.container, 5, []string{"cat", "/tmp/x"}, reasonTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			request := &runtimeapi.ExecSyncRequest{
				ContainerId: test.container,
				Cmd:         test.command,
				Timeout:     test.timeout,
			}
			counted := b.gateway.denied.WithLabelValues("prober", "ExecSync", cmp.Or(test.denied, "none"))
			before := testutil.ToFloat64(counted)
			err := send(t, b.byRole[role.Prober], execSync, encode(t, request))
			passed := b.passed.take("ExecSync")
			if test.denied == "" {
				if err != nil || len(passed) != 1 || !slices.Equal(passed[0], encode(t, request)) {
					t.Errorf("got %v, passed on %q", err, passed)
				}
				return
			}
			if status.Code(err) != codes.PermissionDenied || len(passed) != 0 {
				t.Errorf("got %v, passed on %q", err, passed)
			}
			if got := testutil.ToFloat64(counted) - before; got != 1 {
				t.Errorf("%g denials for the reason %s", got, test.denied)
			}
		})
	}
	// nodeapi's callers were allowed by the apiserver, which knows no probes.
	if err := send(t, b.byRole[role.NodeAPI], execSync,
		encode(t, &runtimeapi.ExecSyncRequest{ContainerId: b.container, Cmd: []string{"id"}})); err != nil {
		t.Errorf("nodeapi: %v", err)
	}
}

// loud is a runtime with commands that print without an end.
type loud struct{ grpc.ClientConnInterface }

func (loud) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	data, err := proto.Marshal(&runtimeapi.ExecSyncResponse{
		Stdout: make([]byte, 10<<20), Stderr: make([]byte, 5<<20), ExitCode: 3,
	})
	return errors.Join(err, frameCodec{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, reply))
}

// TestProbesThatPrintMuch give the prober no more than it shows, and nodeapi all.
func TestProbesThatPrintMuch(t *testing.T) {
	b := newBench(t, anyone)
	b.passed.ClientConnInterface = loud{}
	for _, test := range []struct {
		role           role.Role
		stdout, stderr int
	}{{role.Prober, maxOutput, maxOutput}, {role.NodeAPI, 10 << 20, 5 << 20}} {
		a, err := runtimeapi.NewRuntimeServiceClient(b.byRole[test.role]).ExecSync(t.Context(),
			&runtimeapi.ExecSyncRequest{ContainerId: b.container, Cmd: []string{"hello"}, Timeout: 1},
			grpc.MaxCallRecvMsgSize(maxMessage))
		if err != nil || len(a.Stdout) != test.stdout || len(a.Stderr) != test.stderr || a.ExitCode != 3 {
			t.Errorf("%s gets %d and %d bytes, exit code %d, %v", test.role, len(a.GetStdout()), len(a.GetStderr()),
				a.GetExitCode(), err)
		}
	}
}

// TestUnknownContainersMayStillCome has podsync restarted: what it has not looked at yet is no denial, which
// a prober would take for the pod's fault.
func TestUnknownContainersMayStillCome(t *testing.T) {
	b := newBench(t, anyone)
	fresh := &containers.Index{}
	b.gateway.opts.Containers = fresh
	probe := encode(t, &runtimeapi.ExecSyncRequest{ContainerId: b.container, Cmd: []string{"hello"}, Timeout: 1})
	file := encode(t, &runtimeapi.CheckpointContainerRequest{
		ContainerId: b.container, Location: b.checkpoints + "/checkpoint-web_default-web-2026-03-04T05:06:07Z.tar",
	})
	are := func(when string, want codes.Code) {
		t.Helper()
		if err := send(t, b.byRole[role.Prober], execSync, probe); status.Code(err) != want {
			t.Errorf("%s, a probe: %v", when, err)
		}
		if err := send(t, b.byRole[role.NodeAPI], checkpoint, file); status.Code(err) != want {
			t.Errorf("%s, a checkpoint: %v", when, err)
		}
	}
	are("nothing is known", codes.Unavailable)
	fresh.SetPod(webPod())
	are("the pod is known", codes.Unavailable)
	fresh.SetState("u1", &pod.State{Containers: []pod.Container{{ID: b.container, Name: "web"}}})
	are("the container is known", codes.OK)
	fresh.SetComplete()
	are("all are known", codes.OK)
	fresh.Forget("u1")
	are("the pod is gone", codes.PermissionDenied)
}

func TestRequestsSayWhatWasRead(t *testing.T) {
	b := newBench(t, anyone)
	good := encode(t, &runtimeapi.ExecSyncRequest{ContainerId: b.container, Cmd: []string{"hello"}, Timeout: 1})
	bad := encode(t, &runtimeapi.ExecSyncRequest{ContainerId: "another"})
	for name, request := range map[string][]byte{
		"an unknown field": protowire.AppendString(
			protowire.AppendTag(slices.Clone(good), 99, protowire.BytesType), "/etc",
		),
		"a known field's number": protowire.AppendVarint(
			protowire.AppendTag(slices.Clone(good), 1, protowire.VarintType), 1,
		),
		"the id twice, the bad at the end": append(slices.Clone(good), bad...),
		"two commands": append(slices.Clone(good),
			encode(t, &runtimeapi.ExecSyncRequest{Cmd: []string{"sh"}})...),
	} {
		err := send(t, b.byRole[role.Prober], execSync, request)
		if passed := b.passed.take("ExecSync"); status.Code(err) != codes.PermissionDenied || len(passed) != 0 {
			t.Errorf("%s: %v, passed on %q", name, err, passed)
		}
	}
	if err := send(t, b.byRole[role.Prober], execSync, []byte("\xff")); status.Code(err) != codes.InvalidArgument {
		t.Errorf("what is no message: %v", err)
	}
	// A reader that takes the first of two ids gets to see one only.
	if err := send(t, b.byRole[role.Prober], execSync, append(slices.Clone(bad), good...)); err != nil {
		t.Errorf("the bad id first: %v", err)
	}
	if passed := b.passed.take("ExecSync"); len(passed) != 1 || !slices.Equal(passed[0], good) {
		t.Errorf("passed on %q, want %q", passed, good)
	}
}

func TestCheckpointsStayInTheirFolder(t *testing.T) {
	b := newBench(t, anyone)
	const name = "checkpoint-web_default-web-2026-03-04T05:06:07Z.tar"
	in := func(name string) string { return b.checkpoints + "/" + name }
	ask := func(location string) error {
		return send(t, b.byRole[role.NodeAPI], checkpoint,
			encode(t, &runtimeapi.CheckpointContainerRequest{ContainerId: b.container, Location: location}))
	}
	for _, location := range []string{
		"", name, "/", b.checkpoints, in(""), in("x.tar"), in("../" + name), in("./" + name), in("a/" + name),
		in("a/../" + name), "/" + in(name),
		"/etc/cron.d/" + name, "/etc/passwd", in("checkpoint-other_default-web-2026-03-04T05:06:07Z.tar"),
		in("checkpoint-web_default-other-2026-03-04T05:06:07Z.tar"),
		in("checkpoint-web_default-web-now.tar"), in("checkpoint-web_default-web-2026-03-04T05:06:07Z"),
		in("checkpoint-web_default-web-.tar"), in(name + "\x00"), in("checkpoint-web_default-web-../../x.tar"),
	} {
		if err := ask(location); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%q: %v", location, err)
		}
	}
	for _, location := range []string{in(name), in("checkpoint-web_default-web-2026-03-04T05:06:07+02:00.tar")} {
		if err := ask(location); err != nil {
			t.Errorf("%q: %v", location, err)
		}
	}
	if passed := b.passed.take("CheckpointContainer"); len(passed) != 2 {
		t.Fatalf("%d reached the runtime, want the two that may", len(passed))
	}
	if err := os.Symlink("/nosuch/target", in("checkpoint-web_default-web-2026-01-01T00:00:00Z.tar")); err != nil {
		t.Fatal(err)
	}
	if err := ask(in("checkpoint-web_default-web-2026-01-01T00:00:00Z.tar")); status.Code(err) != codes.AlreadyExists {
		t.Errorf("a link in the file's place: %v", err)
	}
	if err := os.Chmod(b.checkpoints, 0o770); err != nil {
		t.Fatal(err)
	}
	if err := ask(in(name)); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a folder that others may write: %v", err)
	}
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Mkdir(elsewhere, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(b.checkpoints); err != nil {
		t.Fatal(err)
	}
	if err := ask(in(name)); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("no folder: %v", err)
	}
	if err := os.Symlink(elsewhere, b.checkpoints); err != nil {
		t.Fatal(err)
	}
	if err := ask(in(name)); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a link in the folder's place: %v", err)
	}
	if passed := b.passed.take("CheckpointContainer"); len(passed) != 0 {
		t.Errorf("reached the runtime: %q", passed)
	}
}

func TestNoRoleSeesMore(t *testing.T) {
	b := newBench(t, anyone)
	seen := 0
	for _, r := range Roles() {
		for _, d := range descriptions {
			for _, name := range methodNames(d) {
				method := "/" + d.ServiceName + "/" + name
				verbose := requestOf(t, d, name).Fields().ByName("verbose")
				if verbose == nil || !Allowed(r, method) {
					continue
				}
				seen++
				request := protowire.AppendVarint(protowire.AppendTag(nil, verbose.Number(), protowire.VarintType), 1)
				if err := send(t, b.byRole[r], method, request); status.Code(err) != codes.PermissionDenied ||
					!strings.Contains(err.Error(), "verbose") {
					t.Errorf("%s asks %s: %v", r, name, err)
				}
			}
		}
	}
	if seen < 6 {
		t.Errorf("only %d pairs were asked", seen)
	}
}

func requestOf(t *testing.T, d *grpc.ServiceDesc, method string) protoreflect.MessageDescriptor {
	t.Helper()
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(d.ServiceName + "." + method))
	if err != nil {
		t.Fatal(err)
	}
	return found.(protoreflect.MethodDescriptor).Input()
}

// fields are all that the roles' requests have. Those that lead to something are named with what bounds
// them; a field that CRI gains must be put here, and with it a check if it leads to the host.
var fields = map[string]string{
	"VersionRequest.version": "a number",

	"StatusRequest.verbose":                  "terse",
	"PodSandboxStatusRequest.verbose":        "terse",
	"ContainerStatusRequest.verbose":         "terse",
	"ImageStatusRequest.verbose":             "terse",
	"PodSandboxStatusRequest.pod_sandbox_id": "read only",
	"ContainerStatusRequest.container_id":    "read only",
	"ImageStatusRequest.image":               "read only",
	"ContainerStatsRequest.container_id":     "read only",
	"PodSandboxStatsRequest.pod_sandbox_id":  "read only",

	"ImageSpec.image":                "a name",
	"ImageSpec.annotations":          "a hint for images of several platforms",
	"ImageSpec.user_specified_image": "a name",
	"ImageSpec.runtime_handler":      "a name",
	"ImageSpec.image_ref":            "a digest",
	"RemoveImageRequest.image":       "imagegc's work: any image that no container has",

	"ExecSyncRequest.container_id":            "probeCommand; nodeapi: any",
	"ExecSyncRequest.cmd":                     "probeCommand; nodeapi: any",
	"ExecSyncRequest.timeout":                 "probeCommand; nodeapi: any",
	"ExecRequest.container_id":                "nodeapi: any",
	"ExecRequest.cmd":                         "nodeapi: any",
	"ExecRequest.tty":                         "a choice",
	"ExecRequest.stdin":                       "a choice",
	"ExecRequest.stdout":                      "a choice",
	"ExecRequest.stderr":                      "a choice",
	"AttachRequest.container_id":              "nodeapi: any",
	"AttachRequest.tty":                       "a choice",
	"AttachRequest.stdin":                     "a choice",
	"AttachRequest.stdout":                    "a choice",
	"AttachRequest.stderr":                    "a choice",
	"PortForwardRequest.pod_sandbox_id":       "nodeapi: any",
	"PortForwardRequest.port":                 "nodeapi: any",
	"CheckpointContainerRequest.container_id": "checkpointFile",
	"CheckpointContainerRequest.location":     "checkpointFile",
	"CheckpointContainerRequest.timeout":      "a time",
}

// filters narrow lists; none of their fields leads anywhere.
var filters = []string{"PodSandboxFilter", "ContainerFilter", "ImageFilter", "ContainerStatsFilter",
	"PodSandboxStatsFilter"}

func TestEveryFieldIsAccountedFor(t *testing.T) {
	unseen := maps.Clone(fields)
	var walk func(m protoreflect.MessageDescriptor)
	walk = func(m protoreflect.MessageDescriptor) {
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			name := fmt.Sprintf("%s.%s", m.Name(), f.Name())
			if f.Message() != nil && slices.Contains(filters, string(f.Message().Name())) {
				continue
			}
			if fields[name] == "" {
				t.Errorf("%s may be sent by a service: does it lead to the host? Bound it in checks, and write it down here", name)
			}
			delete(unseen, name)
			if f.Message() != nil && !f.IsMap() {
				walk(f.Message())
			}
		}
	}
	for _, d := range descriptions {
		for _, name := range methodNames(d) {
			for _, r := range Roles() {
				if Allowed(r, "/"+d.ServiceName+"/"+name) {
					walk(requestOf(t, d, name))
				}
			}
		}
	}
	for name := range unseen {
		t.Errorf("%s: no role may send that any more", name)
	}
	for r, of := range checks {
		for name := range of {
			if !slices.Contains(methods[r], name) {
				t.Errorf("%s's requests of %s are checked, which it may not call", r, name)
			}
		}
	}
}

func TestDenialsDoNotFillTheLog(t *testing.T) {
	g := &Gateway{logged: map[string]time.Time{}}
	if !g.mayLog("a") || g.mayLog("a") || !g.mayLog("b") {
		t.Error("want one line for each of a and b")
	}
	g.logged["a"] = time.Now().Add(-denialLogPeriod)
	if !g.mayLog("a") {
		t.Error("want another line later")
	}
}
