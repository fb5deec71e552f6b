package peer

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/regularfile"
	"github.com/microlet/microlet/services/internal/testing/notregular"
	"github.com/microlet/microlet/services/internal/testing/peertest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

const podUID = "0b4ad7d5-4f2c-4a5e-9a4c-6a8c9b3a7f10"

// The program that outlives its main thread needs main on that thread.
func init() {
	if len(os.Args) > 1 && os.Args[1] == "outlive" {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	proctest.Program(func() {
		peertest.Ready()
		switch os.Args[1] {
		case "connect":
			conn, err := net.Dial("unix", os.Args[2])
			fmt.Println("connected", err)
			if err == nil {
				_, _ = conn.Read(make([]byte, 1)) // until the test ends it
			}
		case "outlive":
			go outlive(os.Args[2])
			_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // ends this thread alone
		case "serve":
			l, err := net.Listen("unix", os.Args[2])
			fmt.Println("serves", err)
			if err == nil {
				_, _ = l.Accept()
				select {}
			}
		}
	})
	if os.Getuid() != 0 {
		fmt.Println("run the tests as root: they become other users in other cgroups")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// outlive connects once the process's main thread has exited.
func outlive(path string) {
	for {
		stat, err := os.ReadFile("/proc/self/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			break
		}
		time.Sleep(time.Millisecond)
	}
	_, err := net.Dial("unix", path)
	fmt.Println("connected", err)
	select {}
}

// ways are those in which a peer is held; the kernel of a test has one, the other is tried too.
var ways = map[string]holder{"pidfd": holdByPidfd, "start": holdByStart}

func identity(t *testing.T, r role.Role) role.Identity {
	t.Helper()
	id, err := role.Get(r)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// folder is one that members of the node's group may enter, and write to.
func folder(t *testing.T) string {
	t.Helper()
	dir := proctest.TempDir(t, 0o770)
	if err := os.Chown(dir, 0, role.GroupNode); err != nil {
		t.Fatal(err)
	}
	return dir
}

func listen(t *testing.T) (*net.UnixListener, string) {
	t.Helper()
	path := filepath.Join(folder(t), "s.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := errors.Join(os.Chown(path, 0, role.GroupNode), os.Chmod(path, 0o660)); err != nil {
		t.Fatal(err)
	}
	return l, path
}

func accept(t *testing.T, l *net.UnixListener) *net.UnixConn {
	t.Helper()
	conn, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// place is where a process lives, and what comes of it.
type place struct {
	name   string
	role   role.Role // the role of its user; empty is root
	cgroup string    // below the test's own; empty is the test's own
	helper role.Role // what podsync recorded of the pod
	want   []role.Role
	reason string
}

var places = []place{
	{name: "a service beside this one", role: role.Prober, want: []role.Role{role.Prober}},
	{name: "root beside this one", want: []role.Role{role.Podsync, role.Up}},
	{name: "an operator's tool", cgroup: "user.slice/session-1.scope", want: []role.Role{role.Podsync, role.Up}},
	{name: "a service's user in another place of the host", role: role.Prober, cgroup: "user.slice/session-1.scope",
		reason: "is not the node agent's"},
	{name: "a container with a service's user", role: role.Prober, cgroup: "kubepods/burstable/pod" + podUID + "/c",
		reason: "which is no helper"},
	{name: "the same with systemd's names", role: role.Prober,
		cgroup: "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + strings.ReplaceAll(podUID, "-", "_") +
			".slice/cri-containerd-c.scope", reason: "the pod " + podUID},
	{name: "root in a pod", cgroup: "kubepods/pod" + podUID + "/c", reason: "root in the pod " + podUID},
	{name: "a helper", role: role.Prober, cgroup: "kubepods/pod" + podUID + "/c", helper: role.Prober,
		want: []role.Role{role.Prober}},
	{name: "a helper, with systemd's names", role: role.Prober,
		cgroup: "kubepods.slice/kubepods-pod" + strings.ReplaceAll(podUID, "-", "_") + ".slice/c.scope", helper: role.Prober,
		want: []role.Role{role.Prober}},
	{name: "a helper that takes another's user", role: role.NodeAPI, cgroup: "kubepods/pod" + podUID + "/c",
		helper: role.Prober, reason: "helper for prober alone"},
	{name: "root in a helper", cgroup: "kubepods/pod" + podUID + "/c", helper: role.Prober, reason: "root in the pod"},
	{name: "a pod whose own cgroup has a helper's name", role: role.Prober,
		cgroup: "kubepods/podbad/c/kubepods/pod" + podUID, helper: role.Prober, reason: "the pod bad, which is no helper"},
	{name: "an imitation of a helper's cgroup outside of kubepods", role: role.Prober, cgroup: "user.slice/pod" + podUID,
		helper: role.Prober, reason: "is not the node agent's"},
}

// start starts the process of a place and returns the rules that judge it.
func (p place) start(t *testing.T, args ...string) Rules {
	t.Helper()
	o := peertest.Options{}
	if p.role != "" {
		o.UID = identity(t, p.role).UID
	}
	if p.cgroup != "" {
		o.Cgroups = peertest.Cgroup(t, p.cgroup)
	}
	helpers := Helpers{Dir: filepath.Join(folder(t), "helpers")}
	if p.helper != "" {
		if err := helpers.Record(podUID, p.helper); err != nil {
			t.Fatal(err)
		}
	}
	if line := peertest.Start(t, o, args...).Line(t); !strings.HasSuffix(line, "<nil>") {
		t.Fatal(line)
	}
	return Rules{Helpers: helpers.Dir}
}

func (p place) check(t *testing.T, got Peer, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.Roles, p.want) || (got.Reason == "") != (p.reason == "") ||
		!strings.Contains(got.Reason, p.reason) {
		t.Errorf("the peer is %s; want the roles %v and the reason %q", got, p.want, p.reason)
	}
	for _, r := range role.All() {
		if got.Serves(r) != (len(p.want) > 0 && (p.role == "" || p.role == r)) {
			t.Errorf("the peer is taken for %s: %v", r, got.Serves(r))
		}
	}
}

// Other users' processes in other cgroups connect; the kernel says which they are.
func TestClients(t *testing.T) {
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			l, path := listen(t)
			rules := p.start(t, "connect", path)
			conn := accept(t, l)
			for way, hold := range ways {
				t.Log("held by", way)
				got, err := identify(conn, rules, hold)
				p.check(t, got, err)
			}
		})
	}
}

// They serve, and this process looks whom it has reached.
func TestServers(t *testing.T) {
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			path := filepath.Join(folder(t), "s.sock")
			rules := p.start(t, "serve", path)
			conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			got, err := Identify(conn, rules)
			p.check(t, got, err)
		})
	}
}

func TestConfiguredCgroups(t *testing.T) {
	l, path := listen(t)
	dirs := peertest.Unit(t, "system.slice/microlet-prober.service")
	peertest.Start(t, peertest.Options{UID: identity(t, role.Prober).UID, Cgroups: dirs}, "connect", path)
	conn := accept(t, l)
	theirs, err := holdByConnection(conn, mustCredentials(t, conn))
	if err != nil {
		t.Fatal(err)
	}
	at := theirs.String()
	for unit, want := range map[string]bool{
		at:                            true,
		at + "/below":                 false,
		filepath.Dir(at):              false,
		"/system.slice/other.service": false,
	} {
		p, err := Identify(conn, Rules{Cgroups: []string{"/elsewhere", unit}})
		if err != nil || p.Is(role.Prober) != want {
			t.Errorf("with the cgroup %s configured, the peer is %v (%v), want its role: %v", unit, p, err, want)
		}
	}
}

func mustCredentials(t *testing.T, conn *net.UnixConn) *unix.Ucred {
	t.Helper()
	cred, err := credentials(conn)
	if err != nil {
		t.Fatal(err)
	}
	return cred
}

// A process that passed its connection on and ended cannot be judged any more, also when its number is another's.
func TestAPeerThatEnded(t *testing.T) {
	for way, hold := range ways {
		l, path := listen(t)
		p := peertest.Start(t, peertest.Options{UID: identity(t, role.Prober).UID}, "connect", path)
		p.Line(t)
		conn := accept(t, l)
		p.Kill()
		if got, err := identify(conn, Rules{}, hold); !errors.Is(err, errEnded) {
			t.Errorf("%s: the peer is %v (%v), want %v", way, got, err, errEnded)
		}
	}
}

// The other threads of a process live on when its main thread exits. On cgroup v1 /proc then shows the root of each
// hierarchy, where root would be no pod's, and a service's user beside a node agent in the root.
func TestAPeerWhoseMainThreadExited(t *testing.T) {
	for name, uid := range map[string]int{"root": 0, "a service's user": identity(t, role.Prober).UID} {
		l, path := listen(t)
		o := peertest.Options{UID: uid, Cgroups: peertest.Cgroup(t, "kubepods/pod"+podUID+"/c")}
		if line := peertest.Start(t, o, "outlive", path).Line(t); !strings.HasSuffix(line, "<nil>") {
			t.Fatal(line)
		}
		conn := accept(t, l)
		for way, hold := range ways {
			if got, err := identify(conn, Rules{}, hold); !errors.Is(err, errEnded) {
				t.Errorf("%s in a pod, held by %s: the peer is %v (%v), want %v", name, way, got, err, errEnded)
			}
		}
	}
}

// A number that has become that of a service is not that service's word.
func TestAReusedProcessID(t *testing.T) {
	uid := identity(t, role.Prober).UID
	l, path := listen(t)
	peertest.Start(t, peertest.Options{UID: uid}, "connect", path)
	conn := accept(t, l)
	cred := mustCredentials(t, conn)

	other := peertest.Start(t, peertest.Options{UID: identity(t, role.PLEG).UID}, "connect", path)
	reused := *cred
	reused.Pid = int32(other.PID)
	if _, err := holdByStart(conn, &reused); !errors.Is(err, errEnded) || !strings.Contains(err.Error(), "uid") {
		t.Errorf("the number of another user's process: %v, want %v", err, errEnded)
	}
	reused.Pid = 0
	for way, hold := range ways {
		if _, err := hold(conn, &reused); err == nil || !strings.Contains(err.Error(), "hostPID") {
			t.Errorf("%s: a process of a foreign PID namespace: %v, want an error that names the remedy", way, err)
		}
	}
	if _, err := holdByStart(conn, cred); err != nil {
		t.Errorf("the peer itself: %v", err)
	}
}

func TestNothingButAFileIsARecord(t *testing.T) {
	dir := t.TempDir()
	notregular.Each(t, filepath.Join(dir, "u1"), func(t *testing.T) {
		if _, err := HelperRole(dir, "u1"); !errors.Is(err, regularfile.ErrNotRegular) {
			t.Error(err)
		}
	})
}
