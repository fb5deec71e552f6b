package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// A service that something else starts finds what it needs, and status shows it.
func TestExternal(t *testing.T) {
	a := newAgent(t, "--external=prober")
	a.start()
	defer a.stop()
	a.await("the prober as an external service that nothing was heard of", func(rows map[string]row) bool {
		r, ok := rows["prober"]
		return ok && r.State == "external" && r.PID == 0 && r.HeartbeatAgeSeconds == nil && rows["bus"].State == "ready"
	})
	cmd := a.service(t, role.Prober)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a.await("the heartbeat of the external prober", func(rows map[string]row) bool {
		r := rows["prober"]
		return r.State == "external" && r.PID == cmd.Process.Pid && r.HeartbeatAgeSeconds != nil
	})
	a.Await(patience, "the health of the external prober", func() bool { return a.health("prober") == nil })
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := a.health("prober"); err == nil {
		t.Error("a prober that is stopped is healthy")
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the prober ended with %v", err)
	}
}

// service is a service's own command, as something else than "microlet up" starts it.
func (a *agent) service(t *testing.T, r role.Role) *exec.Cmd {
	t.Helper()
	id, err := role.Get(r)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{string(r), "--runtime-dir=" + a.runtimeDir(), "--node-name=node"}
	if r == role.Prober {
		args = append(args, "--resolved-config="+filepath.Join(a.runtimeDir(), "config", "prober.yaml"))
	}
	cmd := proctest.Command(t.Context(), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: uint32(id.UID), Gid: uint32(id.GID)}, Pdeathsig: syscall.SIGKILL,
	}
	cmd.Stderr = t.Output()
	return cmd
}

// health is what "microlet health" says of a service; nil is healthy.
func (a *agent) health(name string) error {
	return proctest.Command(a.t.Context(), "health", name, "--runtime-dir="+a.runtimeDir()).Run()
}

// Prepare makes what services need that are not started here; each then runs as its own user.
func TestPrepare(t *testing.T) {
	a := newAgent(t)
	for range 2 { // the second finds what the first made
		args := append([]string{"prepare"}, a.up()[1:]...)
		if out, err := proctest.Command(t.Context(), args...).CombinedOutput(); err != nil {
			t.Fatalf("prepare: %v\n%s", err, out)
		}
	}
	for path, r := range map[string]role.Role{
		"nkeys/bus.seed": role.Bus, "config/prober.yaml": role.Prober, "sock/stats": role.Stats,
		"credentials/nodestatus/kubeconfig": role.NodeStatus,
	} {
		id, err := role.Get(r)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(a.runtimeDir(), path))
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != id.UID {
			t.Errorf("%s belongs to %d, want %d", path, st.Uid, id.UID)
		}
	}
	if _, err := a.status(); err == nil {
		t.Error("a supervisor runs")
	}
	if err := a.health("pleg"); err == nil {
		t.Error("pleg is healthy before it runs")
	}
	cmd := a.service(t, role.PLEG)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(a.runtimeDir(), "sock", string(role.PLEG), "grpc.sock")
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("pleg does not make %s", socket)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("pleg without a bus ended with %v", err)
	}
}
