package services

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// TestOnlyPodsyncIsConnectedToTheRuntime asks the kernel who is.
func TestOnlyPodsyncIsConnectedToTheRuntime(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	podsync := scene.Shared.MustPID(t, role.Podsync)
	strangers := func() []string {
		clients, err := machine.Clients(scene.Shared.RuntimeSocket())
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		ours := 0
		for _, c := range clients {
			if slices.Equal(c.PIDs, []int{podsync}) {
				ours++
				continue
			}
			for _, pid := range c.PIDs {
				found = append(found, fmt.Sprintf("pid %d: %s", pid, strings.Join(machine.Arguments(pid), " ")))
			}
		}
		if ours == 0 {
			t.Fatalf("podsync (pid %d) is not connected to %s: the clients are %v", podsync, scene.Shared.RuntimeSocket(),
				clients)
		}
		return found
	}
	// A connection of the scenario before may just be closing.
	scene.Await(t, scene.Patience, "podsync alone to be connected", func() error {
		if s := strangers(); len(s) > 0 {
			return fmt.Errorf("connected to the runtime's socket beside podsync: %v", s)
		}
		return nil
	})
	// The positive control: a second client is found.
	conn, err := net.Dial("unix", scene.Shared.RuntimeSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	scene.Await(t, scene.Patience, "this test's own connection to be found, once it is accepted", func() error {
		if s := strangers(); len(s) != 1 || !strings.HasPrefix(s[0], fmt.Sprintf("pid %d:", os.Getpid())) {
			return fmt.Errorf("the clients beside podsync are %v", s)
		}
		return nil
	})
}

// TestPrivileges holds each process to the table of identities.
func TestPrivileges(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	for _, r := range append([]role.Role{role.Up}, scene.Services...) {
		id, err := role.Get(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := scene.Shared.ReadFile(fmt.Sprintf("/proc/%d/status", scene.Shared.MustPID(t, r)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := machine.ParseCredentials(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range privileges(scene.Shared, id, got) {
			t.Errorf("%s: %s", r, p)
		}
		// What runs the tests may give way to others itself.
		nice, up := niceness(scene.Shared, t, r), niceness(scene.Shared, t, role.Up)
		if gives := r == role.NodeAPI || r == role.Stats || r == role.ImageGC; (nice > up) != gives {
			t.Errorf("%s: its niceness is %d, that of up %d; it gives way to others: want %v", r, nice, up, gives)
		}
		if uid, err := owner(scene.Shared, fmt.Sprintf("/proc/%d/fd", scene.Shared.MustPID(t, r))); err != nil || uid != 0 {
			t.Errorf("%s: what /proc has of it belongs to uid %d, and others of its user may look into it: %v", r, uid,
				err)
		}
		network, session := around(t, scene.Shared, r)
		if pid := scene.Shared.MustPID(t, r); r != role.Up && session != strconv.Itoa(pid) {
			t.Errorf("%s: pid %d is of the session %s, which is not its own", r, pid, session)
		}
		closed := slices.Contains([]role.Role{role.Bus, role.PLEG, role.ImageGC, role.Evictor}, r)
		if nodes, _ := around(t, scene.Shared, role.Podsync); closed == (network == nodes) {
			t.Errorf("%s: its network is %s, and podsync's is %s", r, network, nodes)
		}
		t.Logf("%-12s uid %d, groups %v, capabilities %x, at most %x, no new privileges %t", r, got.UIDs[1], got.Groups,
			got.Effective, got.Bounding, got.NoNewPrivileges)
	}
	// The positive control: this test runs as root, which no service but podsync may.
	self, err := machine.ReadCredentials(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []role.Role{role.Bus, role.PLEG, role.NodeStatus, role.NodeAPI, role.ImageGC, role.Stats} {
		id, err := role.Get(r)
		if err != nil {
			t.Fatal(err)
		}
		found := strings.Join(privileges(scene.Shared, id, self), "; ")
		for _, word := range []string{"user ids", "group ids", "permitted capabilities", "effective capabilities",
			"bounding capabilities", "new privileges"} {
			if !strings.Contains(found, word) {
				t.Errorf("a root process passes for %s in its %s: %s", r, word, found)
			}
		}
	}
}

// around returns the network namespace and the session of a service's process.
func around(t *testing.T, n *scene.Node, r role.Role) (network, session string) {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d/", n.MustPID(t, r))
	stat, err := n.ReadFile(proc + "stat")
	if err != nil {
		t.Fatal(err)
	}
	_, fields, _ := strings.Cut(string(stat), ") ")
	session = strings.Fields(fields)[3]
	if n.OnMachine() {
		network, err = n.RunOnMachine(t.Context(), "readlink", proc+"ns/net")
	} else {
		network, err = os.Readlink(proc + "ns/net")
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(network), session
}

// niceness is how much a service's process gives way to others.
func niceness(n *scene.Node, t *testing.T, r role.Role) int {
	t.Helper()
	if n.OnMachine() {
		nice, err := n.NumberOnMachine("ps", "-o", "ni=", "-p", strconv.Itoa(n.MustPID(t, r)))
		if err != nil {
			t.Fatal(err)
		}
		return nice
	}
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, n.MustPID(t, r))
	if err != nil {
		t.Fatal(err)
	}
	return 20 - raw
}

// owner is the user that a file of the node belongs to.
func owner(n *scene.Node, path string) (int, error) {
	if n.OnMachine() {
		return n.NumberOnMachine("stat", "-c", "%u", path)
	}
	var own unix.Stat_t
	err := unix.Lstat(path, &own)
	return int(own.Uid), err
}

// group is the number of a group of the node, if there is one of that name.
func group(n *scene.Node, name string) (gid int, found bool) {
	if n.OnMachine() {
		gid, err := n.NumberOnMachine("sh", "-c", `getent group "$1" | cut -d: -f3`, "getent", name)
		return gid, err == nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, false
	}
	gid, err = strconv.Atoi(g.Gid)
	return gid, err == nil
}

// privileges reports where a process of the node differs from its identity.
func privileges(n *scene.Node, id role.Identity, got machine.Credentials) []string {
	var problems []string
	if want := [4]int{id.UID, id.UID, id.UID, id.UID}; got.UIDs != want {
		problems = append(problems, fmt.Sprintf("user ids are %v, want %v", got.UIDs, want))
	}
	if want := [4]int{id.GID, id.GID, id.GID, id.GID}; got.GIDs != want {
		problems = append(problems, fmt.Sprintf("group ids are %v, want %v", got.GIDs, want))
	}
	if id.UID == 0 {
		return problems // root keeps what it is started with
	}
	want := slices.Clone(id.Groups)
	for _, name := range id.HostGroups {
		if gid, ok := group(n, name); ok {
			want = append(want, gid)
		}
	}
	slices.Sort(want)
	groups := slices.DeleteFunc(slices.Clone(got.Groups), func(g int) bool { return g == id.GID })
	slices.Sort(groups)
	if !slices.Equal(groups, want) {
		problems = append(problems, fmt.Sprintf("it is in the groups %v, want %v", groups, want))
	}
	may, err := machine.CapabilitySet(id.Capabilities)
	if err != nil {
		return append(problems, err.Error())
	}
	for name, set := range map[string]uint64{
		"permitted": got.Permitted,
		"effective": got.Effective,
		"bounding":  got.Bounding,
	} {
		if set != may {
			problems = append(problems, fmt.Sprintf("%s capabilities are %x, want %x", name, set, may))
		}
	}
	for name, set := range map[string]uint64{"inheritable": got.Inheritable, "ambient": got.Ambient} {
		if set&^may != 0 {
			problems = append(problems, fmt.Sprintf("%s capabilities are %x, more than %x", name, set, may))
		}
	}
	if !got.NoNewPrivileges {
		problems = append(problems, "it may gain new privileges")
	}
	return problems
}

// TestGatewayGivesEachRoleItsMethods calls the CRI gateway as several users, from outside and from where the agent
// lives.
func TestGatewayGivesEachRoleItsMethods(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	socket := filepath.Join(scene.Shared.RuntimeDir(), "cri", string(role.PLEG)+".sock")
	const none = "0000000000000000000000000000000000000000000000000000000000000000"
	list := func(ctx context.Context, c runtimeapi.RuntimeServiceClient) error {
		_, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		return err
	}
	stop := func(ctx context.Context, c runtimeapi.RuntimeServiceClient) error {
		_, err := c.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: none})
		return err
	}
	exec := func(ctx context.Context, c runtimeapi.RuntimeServiceClient) error {
		_, err := c.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: none, Cmd: []string{"true"}})
		return err
	}
	uid := func(r role.Role) int {
		id, err := role.Get(r)
		if err != nil {
			t.Fatal(err)
		}
		return id.UID
	}
	for _, test := range []struct {
		name   string
		inside bool // the caller lives in pleg's cgroup
		uid    int
		call   func(context.Context, runtimeapi.RuntimeServiceClient) error
		want   codes.Code
	}{
		{"pleg lists", true, uid(role.PLEG), list, codes.OK},
		{"pleg stops a container", true, uid(role.PLEG), stop, codes.PermissionDenied},
		{"pleg executes", true, uid(role.PLEG), exec, codes.PermissionDenied},
		{"nodestatus lists on pleg's socket", true, uid(role.NodeStatus), list, codes.PermissionDenied},
		{"bus lists on pleg's socket", true, uid(role.Bus), list, codes.PermissionDenied},
		{"an unknown user lists", true, 65534, list, codes.PermissionDenied},
		{"root stops a container on pleg's socket", true, 0, stop, codes.PermissionDenied},
		{"a process with pleg's UID lists from elsewhere", false, uid(role.PLEG), list, codes.PermissionDenied},
	} {
		leave := func() error { return nil }
		if test.inside {
			var err error
			if leave, err = machine.JoinCgroups(scene.Shared.MustPID(t, role.PLEG)); err != nil {
				t.Fatal(err)
			}
		}
		conn, err := grpc.NewClient("passthrough:///pleg", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithNoProxy(),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return dialAs(socket, test.uid) }))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err = test.call(ctx, runtimeapi.NewRuntimeServiceClient(conn))
		cancel()
		conn.Close()
		if err := leave(); err != nil {
			t.Fatal(err)
		}
		if got := status.Code(err); got != test.want {
			t.Errorf("%s: %s, want %s: %v", test.name, got, test.want, err)
		}
	}
}

// dialAs connects to a unix socket as another user of the node's group. The kernel shows the server the credentials of
// the connecting thread, so only a thread becomes that user, and it ends afterwards.
func dialAs(path string, uid int) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		conn, err := connectAs(path, uid)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

func connectAs(path string, uid int) (net.Conn, error) {
	gid := uintptr(role.GroupNode)
	// The package's own calls would change all threads.
	for _, call := range [][4]uintptr{
		{unix.SYS_SETGROUPS, 0, 0, 0},
		{unix.SYS_SETRESGID, gid, gid, gid},
		{unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)},
	} {
		if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
			return nil, fmt.Errorf("become uid %d: %w", uid, errno)
		}
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("connect to %s as uid %d: %w", path, uid, err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	return net.FileConn(file)
}
