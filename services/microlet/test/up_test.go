package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/microlet/internal/command"
	"github.com/microlet/microlet/services/podsync"
)

// patience bounds a wait on real processes, on a machine that may be busy.
const patience = 90 * time.Second

func TestMain(m *testing.M) {
	if podsync.RunChild() { // the children are of this binary
		return
	}
	proctest.Program(func() { service.Main(command.Of(os.Args[1:])) })
	os.Exit(m.Run())
}

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: none}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

// agent is a node agent of its own folders, cgroups and ports.
type agent struct {
	*proctest.Process // once it is started

	t    *testing.T
	dir  string
	args []string
}

func newAgent(t *testing.T, args ...string) *agent {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: microlet up gives each service its own identity")
	}
	dir, err := os.MkdirTemp("/tmp", "up")
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{t: t, dir: dir, args: args}
	cgroup := "/microlet-test-" + filepath.Base(dir)
	t.Cleanup(func() {
		removeCgroups(cgroup)
		// podsync binds its root folder onto itself where nothing is shared, and one that was just started may do so
		// after its supervisor was killed.
		for range 100 {
			_ = syscall.Unmount(filepath.Join(dir, "root"), syscall.MNT_DETACH)
			if os.RemoveAll(dir) == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	stop, err := fake.NewRuntime(nil).Serve(filepath.Join(dir, "runtime.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	makeCgroups(t, cgroup)
	config := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://%[1]s/runtime.sock
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: %[2]s
podLogsDir: %[1]s/logs
logging: {format: json}
# Who has the ports of this machine, and its packet filter, is of no matter to these tests.
makeIPTablesUtilChains: false
enableServer: false
healthzPort: 0
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
`, dir, cgroup)
	for name, data := range map[string]string{"kubelet.yaml": config, "kubeconfig": kubeconfig} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// cgroupDirs are where a cgroup is: one folder, or one for each of v1's hierarchies.
func cgroupDirs(name string) []string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return []string{"/sys/fs/cgroup" + name}
	}
	controllers, _ := filepath.Glob("/sys/fs/cgroup/*")
	var dirs []string
	for _, c := range controllers {
		dirs = append(dirs, c+name)
	}
	return dirs
}

func makeCgroups(t *testing.T, name string) {
	t.Helper()
	for _, dir := range cgroupDirs(name) {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
	}
}

// removeCgroups removes a cgroup and those below it, the deepest first.
func removeCgroups(name string) {
	for _, root := range cgroupDirs(name) {
		var dirs []string
		_ = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append([]string{p}, dirs...)
			}
			return nil
		})
		for _, d := range dirs {
			_ = syscall.Rmdir(d)
		}
	}
}

func (a *agent) runtimeDir() string { return filepath.Join(a.dir, "run") }

// devicePlugins is in place of /var/lib/kubelet/device-plugins.
func (a *agent) devicePlugins() string { return filepath.Join(a.dir, "root", "device-plugins") }

// up is the command line of "microlet up".
func (a *agent) up() []string {
	return append([]string{
		"up", "--config=" + filepath.Join(a.dir, "kubelet.yaml"), "--kubeconfig=" + filepath.Join(a.dir, "kubeconfig"),
		"--root-dir=" + filepath.Join(a.dir, "root"), "--hostname-override=node",
		"--runtime-dir=" + a.runtimeDir(), "--imagegc-state-dir=" + filepath.Join(a.dir, "imagegc"),
		"--container-log-links=" + filepath.Join(a.dir, "links"),
		"--device-plugins-dir=" + a.devicePlugins(),
	}, a.args...)
}

// start runs "microlet up".
func (a *agent) start() {
	a.t.Helper()
	a.Process = proctest.Start(a.t, "microlet up", a.up()...)
}

// row is one process of "microlet status -o json".
type row struct {
	Service, State      string
	PID, Restarts       int
	MemoryBytes         uint64
	HeartbeatAgeSeconds *float64
}

func (a *agent) status() (map[string]row, error) {
	out, err := proctest.Command(a.t.Context(), "status", "-o", "json", "--runtime-dir="+a.runtimeDir()).Output()
	if err != nil {
		return nil, err
	}
	var s struct{ Processes []row }
	if err := json.Unmarshal(out, &s); err != nil {
		return nil, err
	}
	rows := map[string]row{}
	for _, r := range s.Processes {
		rows[r.Service] = r
	}
	return rows, nil
}

// await waits until "microlet status" shows what ok asks for, and returns it.
func (a *agent) await(what string, ok func(map[string]row) bool) map[string]row {
	a.t.Helper()
	var rows map[string]row
	var err error
	a.Await(patience, what, func() bool {
		rows, err = a.status()
		return err == nil && ok(rows)
	})
	return rows
}

var all = []string{"up", "bus", "podsync", "pleg", "prober", "nodestatus", "imagegc", "stats", "evictor", "nodeapi"}

// ready reports whether all services do what they can without an apiserver.
func ready(rows map[string]row) bool {
	for _, name := range all {
		if rows[name].State != "ready" {
			return false
		}
	}
	return true
}

// stop ends the agent as an operator does.
func (a *agent) stop() {
	a.t.Helper()
	a.Signal(syscall.SIGTERM)
	if err := a.End(patience); err != nil {
		a.t.Errorf("microlet up ended with %v", err)
	}
}

// procStatus is a field of /proc/<pid>/status.
func procStatus(t *testing.T, pid int, field string) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(data), "\n") {
		if key, value, ok := strings.Cut(line, ":"); ok && key == field {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	t.Fatalf("pid %d has no %s", pid, field)
	return ""
}

// coreFiles is the line of /proc/<pid>/limits that says that there are none.
var coreFiles = regexp.MustCompile(`(?m)^Max core file size +0 +0 `)

func procFile(t *testing.T, pid int, name string) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// capabilityMask is how /proc shows a set of capabilities.
func capabilityMask(t *testing.T, names []string) string {
	t.Helper()
	var mask uint64
	for _, name := range names {
		bit, ok := map[string]int{
			"CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_DAC_READ_SEARCH": unix.CAP_DAC_READ_SEARCH,
			"CAP_SYSLOG": unix.CAP_SYSLOG,
		}[name]
		if !ok {
			t.Fatalf("the test does not know capability %s", name)
		}
		mask |= 1 << bit
	}
	return fmt.Sprintf("%016x", mask)
}

// namespace is the network namespace of a process.
func namespace(t *testing.T, pid int) string {
	t.Helper()
	at, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// has reports whether a process has a file open.
func has(t *testing.T, pid int, path string) bool {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		at, err := os.Readlink(filepath.Join(dir, e.Name()))
		return err == nil && at == path
	})
}

func TestProcesses(t *testing.T) {
	t.Setenv("SOME_OTHER_PASSWORD", "hunter2")
	if err := syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{Cur: 1 << 30, Max: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	// As a shell, or a program of root's, may have one open that is not for services.
	passedOn, err := os.CreateTemp(t.TempDir(), "passed-on")
	if err != nil {
		t.Fatal(err)
	}
	defer passedOn.Close()
	if _, err := unix.FcntlInt(passedOn.Fd(), unix.F_SETFD, 0); err != nil {
		t.Fatal(err)
	}
	a := newAgent(t)
	a.start()
	if !has(t, a.PID(), passedOn.Name()) {
		t.Error("microlet up has not the descriptor: the test proves nothing")
	}
	rows := a.await("all ready, with heartbeats and memory", func(rows map[string]row) bool {
		for _, name := range all[1:] {
			if rows[name].HeartbeatAgeSeconds == nil || rows[name].MemoryBytes == 0 {
				return false
			}
		}
		return ready(rows)
	})
	for _, name := range all {
		id, err := role.Get(role.Role(name))
		if err != nil {
			t.Fatal(err)
		}
		uid := fmt.Sprint(id.UID)
		if got, want := procStatus(t, rows[name].PID, "Uid"), strings.Join([]string{uid, uid, uid, uid}, " "); got != want {
			t.Errorf("%s has uids %s, want %s", name, got, want)
		}
		if caps := procStatus(t, rows[name].PID, "CapPrm"); id.UID != 0 && caps != capabilityMask(t, id.Capabilities) ||
			id.UID == 0 && caps == capabilityMask(t, nil) {
			t.Errorf("%s has capabilities %s", name, caps)
		}
		if limits := procFile(t, rows[name].PID, "limits"); !coreFiles.MatchString(limits) {
			t.Errorf("%s may leave core files:\n%s", name, limits)
		}
		if session := strings.Fields(procFile(t, rows[name].PID, "stat"))[5]; name != "up" &&
			session != strconv.Itoa(rows[name].PID) {
			t.Errorf("%s is of the session %s, which is not its own", name, session)
		}
		if name != "up" && has(t, rows[name].PID, passedOn.Name()) {
			t.Errorf("%s has a descriptor of the process that has started microlet up", name)
		}
		closed := slices.Contains([]string{"bus", "pleg", "imagegc", "evictor"}, name)
		if network, ours := namespace(t, rows[name].PID), namespace(t, os.Getpid()); closed == (network == ours) {
			t.Errorf("%s has the network %s, and the node %s", name, network, ours)
		}
		score, cgroups := procFile(t, rows[name].PID, "oom_score_adj"), procFile(t, rows[name].PID, "cgroup")
		if expendable := slices.Contains([]string{"prober", "imagegc", "stats", "nodeapi"}, name); expendable !=
			(score == fmt.Sprintln(service.Expendable)) {
			t.Errorf("%s has the score %s", name, score)
		}
		if limited := name != "up" && name != "podsync"; limited != strings.Contains(cgroups, "/microlet-limited-") {
			t.Errorf("%s is in the cgroups\n%s", name, cgroups)
		}
		if environ := procFile(t, rows[name].PID, "environ"); name != "up" && strings.Contains(environ, "hunter2") {
			t.Errorf("%s has the supervisor's environment: %q", name, environ)
		}
	}

	for _, name := range all[1:] {
		if err := syscall.Kill(rows[name].PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	after := a.await("all back", func(now map[string]row) bool {
		for _, name := range all[1:] {
			if now[name].Restarts != 1 || now[name].PID == rows[name].PID {
				return false
			}
		}
		return ready(now)
	})

	if out, err := proctest.Command(t.Context(), a.up()...).CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "another microlet up") {
		t.Errorf("a second microlet up in the same folder: %v: %s", err, out)
	}

	a.Kill()
	for _, name := range all {
		proctest.Await(t, patience, name+" dies with its supervisor", func() bool { return !proctest.Alive(after[name].PID) })
	}
	logged := a.Log.String()
	a.start()
	a.await("all ready after the supervisor's death", ready)
	a.stop()
	if left, _ := filepath.Glob(filepath.Join(a.runtimeDir(), "sock", "*", "*.sock")); len(left) != 0 {
		t.Errorf("sockets are left: %v", left)
	}

	// One stream of JSON objects, each with its service.
	seen := map[string]bool{}
	for _, line := range strings.Split(strings.TrimSpace(logged+a.Log.String()), "\n") {
		var l struct{ Service, Msg string }
		if err := json.Unmarshal([]byte(line), &l); err != nil || l.Service == "" || l.Msg == "" {
			t.Errorf("%q is no log line of a service: %v", line, err)
		}
		seen[l.Service] = true
	}
	for _, name := range all {
		if !seen[name] {
			t.Errorf("%s logged nothing", name)
		}
	}
}

func TestHungServiceIsBack(t *testing.T) {
	a := newAgent(t, "--watchdog=5s")
	a.start()
	rows := a.await("all ready", ready)
	if err := syscall.Kill(rows["pleg"].PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	a.await("pleg again", func(now map[string]row) bool { return now["pleg"].Restarts == 1 && ready(now) })
	a.stop()
}

func TestSingle(t *testing.T) {
	a := newAgent(t, "--placement=single")
	a.start()
	rows := a.await("all ready, with heartbeats", func(rows map[string]row) bool {
		for _, name := range all[1:] {
			if rows[name].HeartbeatAgeSeconds == nil {
				return false
			}
		}
		return ready(rows)
	})
	for _, name := range all {
		if rows[name].PID != a.PID() {
			t.Errorf("%s has pid %d, want the one process %d", name, rows[name].PID, a.PID())
		}
	}
	if rows["up"].MemoryBytes == 0 || rows["bus"].MemoryBytes != 0 {
		t.Errorf("memory is reported as %d and %d, want it once", rows["up"].MemoryBytes, rows["bus"].MemoryBytes)
	}
	a.stop()
}
