package pods

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// TestExecProbes runs exec probes of each kind, of a container and of a sidecar, through restarts of podsync,
// and then asks on the services' sockets for what is no probe and no checkpoint.
func TestExecProbes(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	exec := corev1.ProbeHandler{
		Exec: &corev1.ExecAction{Command: []string{"test", "-e", "$(FILE)", "-a", "$$(FILE)", "!=", ""}},
	}
	p := scene.ProbedPod("probed", exec)
	c := &p.Spec.Containers[0]
	c.Env = []corev1.EnvVar{{Name: "FILE", Value: "/tmp/www/ok"}}
	c.StartupProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 60, ProbeHandler: exec}
	sidecar := scene.ShellContainer("sidecar", "echo ok > /tmp/ok; "+scene.Forever)
	sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	sidecar.ReadinessProbe = &corev1.Probe{
		PeriodSeconds: 1,
		ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"cat", "/tmp/ok"}}},
	}
	p.Spec.InitContainers = []corev1.Container{sidecar}
	s.CreatePods(p)
	s.WaitReady(scene.Patience, p.Name)
	w := s.Witness(p.Name)
	for range 2 {
		scene.Shared.Signal(t, syscall.SIGKILL, role.Podsync)
		time.Sleep(5 * time.Second) // probes are run meanwhile, each second
		scene.Shared.WaitHealthy(t, scene.Patience)
	}
	w.Untouched()

	id := ""
	s.Wait(scene.Patience, "the container's id is known", func(v record.View) error {
		for _, c := range s.ContainerStatuses(v, p.Name) {
			if c.Name == p.Spec.Containers[0].Name {
				id = strings.TrimPrefix(c.ContainerID, "containerd://")
				return nil
			}
		}
		return fmt.Errorf("no status")
	})
	ask := func(r role.Role, call func(context.Context, runtimeapi.RuntimeServiceClient) error) codes.Code {
		conn, err := grpc.NewClient("unix://"+filepath.Join(scene.Shared.RuntimeDir(), "cri", string(r)+".sock"),
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
			grpc.WithNoProxy())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		return status.Code(call(ctx, runtimeapi.NewRuntimeServiceClient(conn)))
	}
	run := func(command ...string) codes.Code {
		return ask(role.Prober, func(ctx context.Context, c runtimeapi.RuntimeServiceClient) error {
			_, err := c.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: command, Timeout: 1})
			return err
		})
	}
	for want, command := range map[codes.Code][]string{
		codes.OK: {"test", "-e", "/tmp/www/ok", "-a", "$(FILE)", "!=", ""}, codes.PermissionDenied: {"sh", "-c", "id"},
	} {
		if got := run(command...); got != want {
			t.Errorf("%q: %v, want %v", command, got, want)
		}
	}
	if got := ask(role.NodeAPI, func(ctx context.Context, c runtimeapi.RuntimeServiceClient) error {
		_, err := c.CheckpointContainer(ctx,
			&runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: filepath.Join(t.TempDir(), "x.tar")})
		return err
	}); got != codes.PermissionDenied {
		t.Errorf("a checkpoint into a folder of the caller's: %v", got)
	}
}
