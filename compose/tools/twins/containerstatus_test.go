package twins

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/kuberuntime"

	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// stated is what the runtime says of a container, and what this has left: its message and its log, nil without one.
type stated struct {
	State               runtimeapi.ContainerState
	Started, Finished   int64
	ExitCode            int32
	Reason, Message     string
	ImageID             string
	Annotations         map[string]string
	MessagePath, Policy string
	File, Log           *string
}

var _ = register(Pair[stated, kubecontainer.Status]{
	Name:     "containerstatus",
	Generate: drawStated,
	Upstream: func(in stated) kubecontainer.Status {
		at := takeScratch()
		defer at.giveBack()
		t := kuberuntime.NewTwinConfig(nil, nil, &kuberuntime.TwinSettings{})
		status := *t.Status(context.Background(), "u1", in.write(at))
		status.Message = strings.ReplaceAll(status.Message, at.root, "/root")
		return status
	},
	Ours: func(in stated) kubecontainer.Status {
		at := takeScratch()
		defer at.giveBack()
		r, err := runtime.New(answers{status: in.write(at)}, nil, runtime.Options{
			PodLogsDir: at.logs, PodsDir: filepath.Join(at.ours, "pods"), Log: slog.New(slog.DiscardHandler),
		})
		must(err)
		state, err := r.State(context.Background(), "u1")
		must(err)
		status := *kubeContainer(&state.Containers[0])
		status.Message = strings.ReplaceAll(status.Message, at.root, "/root")
		return status
	},
	Branches: func(in stated, out kubecontainer.Status) []string {
		did := []string{string(out.State)}
		for what, is := range map[string]bool{
			"a message of the runtime and the container": in.Message != "" && len(out.Message) > len(in.Message)+2,
			"a message of the container":                 in.Message == "" && in.File != nil && out.Message != "",
			"a cut message":                              in.File != nil && len(*in.File) > 4096 && len(out.Message) >= 4096,
			"a log":                                      in.File == nil && in.Log != nil && len(out.Message) > 0,
			"a cut log":                                  in.File == nil && len(out.Message) >= 2048,
			"an error":                                   strings.Contains(out.Message, "Error on reading"),
			"a hash":                                     out.Hash != 0, "a restart": out.RestartCount > 0,
		} {
			if is {
				did = append(did, what)
			}
		}
		return did
	},
	Differences: []Difference[stated, kubecontainer.Status]{
		{Name: "resolves no link to a log", Adjust: func(_ stated, out *kubecontainer.Status) bool {
			const resolve, log = `failed to try resolving symlinks in path "/root/logs/c0.log": lstat `, "open "
			resolves := strings.Contains(out.Message, resolve)
			out.Message = strings.Replace(out.Message, resolve, log, 1)
			return resolves
		}},
		{Name: "does not show a line of the log", Adjust: func(_ stated, out *kubecontainer.Status) bool {
			before, _, shows := strings.Cut(out.Message, "failed to get parse function: unsupported log format: ")
			if shows {
				out.Message = before + "unsupported log format"
			}
			return shows
		}},
	},
	Wanted: []string{"created", "running", "exited", "unknown", "a message of the runtime and the container",
		"a message of the container", "a cut message", "a log", "a cut log", "an error", "a hash", "a restart"},
	Break: func(_ stated, out *kubecontainer.Status) { out.Message = strings.TrimSuffix(out.Message, "\n") },
})

func drawStated(s *Source) stated {
	in := stated{
		State: OneOf(s, runtimeapi.ContainerState_CONTAINER_EXITED, runtimeapi.ContainerState_CONTAINER_EXITED,
			runtimeapi.ContainerState_CONTAINER_EXITED, runtimeapi.ContainerState_CONTAINER_EXITED,
			runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_CREATED,
			runtimeapi.ContainerState_CONTAINER_UNKNOWN),
		Started: OneOf(s, int64(5), 0), Finished: OneOf(s, int64(7), 0), ExitCode: OneOf(s, int32(1), 0, 137),
		Reason: OneOf(s, "Error", "Completed", "ContainerCannotRun", ""), Message: OneOf(s, "", "", "the runtime's"),
		ImageID: OneOf(s, "", "id"), Annotations: map[string]string{},
		MessagePath: OneOf(s, "/log", "", "log"), Policy: OneOf(s, "FallbackToLogsOnError", "File", ""),
	}
	if hash := OneOf(s, "", "2bc85f72", "0", "zz", "ffffffffffffffff", "1ffffffffffffffff", "-1"); hash != "" {
		in.Annotations[pod.AnnotationHash] = hash
	}
	if count := OneOf(s, "", "3", "0", "x", "2147483647", "99999999999999999999"); count != "" {
		in.Annotations[pod.AnnotationRestartCount] = count
	}
	if s.Percent(50) {
		in.File = new(strings.Repeat(OneOf(s, "x", "é", "\n", "abc\n"), OneOf(s, 1, 0, 5, 1365, 4096, 4097, 9000)))
	}
	if s.Percent(80) {
		in.Log = new(drawLog(s))
	}
	return in
}

func drawLog(s *Source) string {
	var b strings.Builder
	line := func() {
		if s.Percent(5) {
			b.WriteString(OneOf(s, "junk\n", "\n", "2026-01-01T00:00:00Z\n", "2026-01-01T00:00:00Z stdout F\n",
				"2026-01-01T00:00:00Z other F x\n", "x stdout F y\n"))
			return
		}
		fmt.Fprintf(&b, "2026-01-01T00:00:00.%09dZ %s %s %s\n", 1, OneOf(s, "stdout", "stderr"), OneOf(s, "F", "P", "F:x"),
			strings.Repeat(OneOf(s, "x", "é", "a b "), OneOf(s, 1, 0, 10, 50, 700)))
	}
	json := s.Percent(15)
	for range OneOf(s, 1, 0, 3, 30, 79, 80, 81, 100) {
		if json {
			fmt.Fprintf(&b, `{"log":"%s","stream":"%s","time":"2026-01-01T00:00:00Z"}`+"\n", OneOf(s, `x\n`, `x`, `\u003c`),
				OneOf(s, "stdout", "stderr"))
		} else {
			line()
		}
	}
	text := b.String()
	if s.Percent(15) && len(text) > 0 {
		text = text[:len(text)-1-s.Intn(min(len(text), 60))] // it was cut while it was written
	}
	return text
}

// write puts the files where they are, and returns what the runtime says.
func (in *stated) write(at *scratch) *runtimeapi.ContainerStatus {
	dir := filepath.Join(at.ours, "pods", "u1", "containers", "c0")
	must(os.MkdirAll(dir, 0o750))
	file, log := filepath.Join(dir, "message"), filepath.Join(at.logs, "c0.log")
	for path, text := range map[string]*string{file: in.File, log: in.Log} {
		_ = os.Remove(path)
		if text != nil {
			must(os.WriteFile(path, []byte(*text), 0o600))
		}
	}
	status := &runtimeapi.ContainerStatus{
		Id: "id0", Metadata: &runtimeapi.ContainerMetadata{Name: "c0"}, State: in.State, CreatedAt: 3,
		Image: &runtimeapi.ImageSpec{Image: "image:1"}, ImageRef: "sha256:1", ImageId: in.ImageID,
		Labels:      map[string]string{kubelettypes.KubernetesContainerNameLabel: "c0"},
		Annotations: map[string]string{}, LogPath: log,
		Mounts: []*runtimeapi.Mount{{ContainerPath: "/data", HostPath: "/data"}, {ContainerPath: "/log", HostPath: file}},
	}
	status.Annotations[pod.AnnotationTerminationMessagePath] = in.MessagePath
	status.Annotations[pod.AnnotationTerminationMessagePolicy] = in.Policy
	for key, value := range in.Annotations {
		status.Annotations[key] = value
	}
	if in.State != runtimeapi.ContainerState_CONTAINER_CREATED {
		status.StartedAt = in.Started
	}
	if in.State == runtimeapi.ContainerState_CONTAINER_EXITED {
		status.FinishedAt, status.ExitCode, status.Reason, status.Message = in.Finished, in.ExitCode, in.Reason, in.Message
	}
	return status
}

// answers is a runtime with one container.
type answers struct {
	grpc.ClientConnInterface
	status *runtimeapi.ContainerStatus
}

func (a answers) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	switch r := reply.(type) {
	case *runtimeapi.ListContainersResponse:
		r.Containers = []*runtimeapi.Container{{
			Id: a.status.Id, PodSandboxId: "sandbox", State: a.status.State,
			Labels: map[string]string{kubelettypes.KubernetesPodUIDLabel: "u1"},
		}}
	case *runtimeapi.ContainerStatusResponse:
		r.Status = a.status
	}
	return nil
}
