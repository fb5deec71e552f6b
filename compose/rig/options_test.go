package rig

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/rig/internal/build"
	"github.com/microlet/microlet/compose/rig/internal/cgroup"
	"github.com/microlet/microlet/compose/rig/internal/network"
)

func TestOptions(t *testing.T) {
	for _, tc := range []struct {
		name    string
		o       Options
		wantErr string
	}{
		{name: "defaults"},
		{name: "longest name", o: Options{Name: strings.Repeat("a", 20)}},
		{name: "long name", o: Options{Name: strings.Repeat("a", 21)}, wantErr: "at most 20"},
		{name: "name that leaves its folder", o: Options{Name: "../x"}, wantErr: "instance name"},
		{name: "hidden name", o: Options{Name: ".instances"}, wantErr: "instance name"},
		{name: "long folder", o: Options{Dir: "/" + strings.Repeat("d", 50)}, wantErr: "choose a shorter one"},
		{name: "unknown agent", o: Options{Agent: "cubelet"}, wantErr: "use microlet, kubelet or none"},
		{name: "systemd here", o: Options{CgroupDriver: "systemd"}, wantErr: "machine of the node's own"},
		{name: "systemd there", o: Options{CgroupDriver: "systemd", Machine: true}},
		{name: "unknown driver", o: Options{CgroupDriver: "cgroup"}, wantErr: "use cgroupfs or systemd"},
		{name: "too many pods", o: Options{MaxPods: 2000}, wantErr: "use 1 to 1000"},
		{name: "standalone here", o: Options{Standalone: true}},
		{name: "standalone here, for a suite", o: Options{Standalone: true, DefaultPlaces: true},
			wantErr: "machine of the node's own"},
		{name: "standalone there, for none", o: Options{Standalone: true, Machine: true},
			wantErr: "needs the default places"},
		{name: "standalone without an agent", o: Options{Standalone: true, Agent: AgentNone}, wantErr: "without an agent"},
		{name: "open here", o: Options{Open: true, DefaultPlaces: true}, wantErr: "machine of the node's own"},
		{name: "standalone there", o: Options{Standalone: true, DefaultPlaces: true, Machine: true}},
		{name: "a disk too small", o: Options{NodeDisk: 5}, wantErr: "at least 64"},
		{name: "a disk beside a machine's", o: Options{ImageDisk: 500, Machine: true}, wantErr: "has one disk"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := tc.o.withDefaults()
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error %v, want one with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Agent != AgentMicrolet || got.MaxPods != 250 || got.AgentWatchdog != 10*time.Second ||
				got.Source == "" || got.Out == nil {
				t.Errorf("defaults: %+v", got)
			}
		})
	}
}

func instance(t *testing.T, agent Agent) *Instance {
	t.Helper()
	plan, err := network.For(3)
	if err != nil {
		t.Fatal(err)
	}
	return &Instance{tree: cgroup.Tree{}, r: record{
		Name:      "a",
		Dir:       home + "/a",
		Network:   plan,
		Agent:     agent,
		AgentArgs: []string{"--placement=single"},
		Microlet:  "/bin/microlet",
		Watchdog:  10 * time.Second,
		Binaries:  build.Binaries{build.Kubelet: "/cache/kubelet", build.AgentLoop: "/cache/rig-agent"},
	}}
}

func TestOptionsOfAMachine(t *testing.T) {
	if o, err := (Options{Machine: true}).withDefaults(); err != nil || o.CgroupDriver != "systemd" ||
		o.MachineMemory != 3072 {
		t.Errorf("cgroup driver %q, memory %d, %v", o.CgroupDriver, o.MachineMemory, err)
	}
	t.Setenv("MICROLET_MACHINE", "vmware")
	if _, err := (Options{Machine: true}).withDefaults(); err == nil || !strings.Contains(err.Error(), "vmware") {
		t.Errorf("an unknown kind of machine: %v, want a word about it", err)
	}
}

func TestAgentsGetTheSameCommandLine(t *testing.T) {
	lines := map[Agent][]string{}
	for _, agent := range []Agent{AgentKubelet, AgentMicrolet} {
		s := instance(t, agent).spec(AgentProgram)
		if s.Path != "/cache/rig-agent" {
			t.Errorf("%s is started by %s, want the loop", agent, s.Path)
		}
		i := slices.Index(s.Args, "--")
		if i < 0 || !slices.Contains(s.Args[:i], "--watchdog=10s") {
			t.Fatalf("%s: arguments of the loop: %q", agent, s.Args)
		}
		lines[agent] = s.Args[i+1:]
	}
	// The kubelet has its folder of device plugins at a fixed path.
	bind := "--bind=" + home + "/a/kubelet/device-plugins:/var/lib/kubelet/device-plugins"
	if args := instance(t, AgentKubelet).spec(AgentProgram).Args; !slices.Contains(args, bind) {
		t.Errorf("the kubelet is started with %q, want %s", args, bind)
	}
	kubelet, microlet := lines[AgentKubelet], lines[AgentMicrolet]
	if kubelet[0] != "/cache/kubelet" || !slices.Equal(microlet[:2], []string{"/bin/microlet", "up"}) {
		t.Errorf("commands: %q, %q", kubelet[0], microlet[:2])
	}
	for _, arg := range kubelet[1:] {
		if !slices.Contains(microlet, arg) {
			t.Errorf("microlet does not get the kubelet's %s", arg)
		}
	}
	own := slices.DeleteFunc(slices.Clone(microlet[2:]), func(arg string) bool { return slices.Contains(kubelet, arg) })
	want := []string{
		"--runtime-dir=/run/microlet-rig/a/microlet", "--imagegc-state-dir=/var/lib/microlet-rig/a/imagegc",
		"--device-plugins-dir=/var/lib/microlet-rig/a/kubelet/device-plugins",
	}
	if !slices.Equal(own, want) {
		t.Errorf("only microlet gets %q, want %q", own, want)
	}
}

func TestSocketPathsFit(t *testing.T) {
	const longest = 107 // of a unix socket's path
	i := instance(t, AgentMicrolet)
	i.r.Name = strings.Repeat("n", 20)
	i.r.Dir = home + "/" + i.r.Name
	for _, path := range []string{
		i.RuntimeSocket() + ".ttrpc",
		i.RuntimeDir() + "/sock/nodestatus/metrics.sock",
		i.RootDir() + "/pod-resources/kubelet.sock",
		i.RootDir() + "/device-plugins/kubelet.sock",
		i.containerdConfig().ShimSocket + "/" + strings.Repeat("f", 64),
	} {
		if len(path) > longest {
			t.Errorf("%s has %d bytes, at most %d are possible", path, len(path), longest)
		}
	}
}

func TestEveryProgramCanBeStartedCheckedAndStopped(t *testing.T) {
	i := instance(t, AgentMicrolet)
	for _, name := range i.programs() {
		if name != AgentProgram && len(i.spec(name).Args) == 0 {
			t.Errorf("%s has no arguments", name)
		}
		if grace[name] == 0 {
			t.Errorf("%s has no time to end by itself", name)
		}
		if i.check(name) == nil {
			t.Errorf("%s has no check", name)
		}
	}
	args := i.spec(APIServer).Args
	for _, want := range []string{"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--kubelet-preferred-address-types=InternalIP", "--advertise-address=10.210.12.1"} {
		if !slices.Contains(args, want) {
			t.Errorf("the API server is not started with %s", want)
		}
	}
	i.r.DefaultPlaces = true
	if want := "--disable-admission-plugins=TaintNodesByCondition"; !slices.Contains(i.spec(APIServer).Args, want) {
		t.Errorf("the API server of a node without taints is not started with %s", want)
	}
	if want := "--controllers=*,-node-lifecycle-controller"; !slices.Contains(i.spec(ControllerManager).Args, want) {
		t.Errorf("the controller manager of a node without taints is not started with %s", want)
	}
}
