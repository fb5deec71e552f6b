package rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"github.com/microlet/microlet/compose/rig/internal/build"
	"github.com/microlet/microlet/compose/rig/internal/config"
	"github.com/microlet/microlet/compose/rig/internal/images"
	"github.com/microlet/microlet/compose/rig/internal/mounts"
	"github.com/microlet/microlet/compose/rig/internal/network"
	"github.com/microlet/microlet/compose/rig/internal/pki"
	"github.com/microlet/microlet/compose/rig/internal/process"
	"github.com/microlet/microlet/compose/rig/machine"
)

// readiness is how long any one program may take until it is ready; etcd and
// the API server need a few seconds on two idle cores.
const readiness = 2 * time.Minute

// Build installs the packages that the machine lacks and builds all programs
// and images that the cache lacks, of the base and of Options.With.
func Build(ctx context.Context, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if _, _, err = prepare(ctx, o); err != nil {
		return err
	}
	if o.Machine || slices.Contains(o.With, build.GroupMachine) {
		_, err = machine.Build(ctx, o.Source, o.Out)
	}
	return err
}

// prepare returns the programs and the folders of the images, in the order in
// which they are to be pushed.
func prepare(ctx context.Context, o Options) (build.Binaries, []string, error) {
	groups := o.With
	if o.Agent == AgentKubelet {
		groups = append(slices.Clone(groups), build.GroupKubelet)
	}
	builder, err := newBuilder(o)
	if err != nil {
		return nil, nil, err
	}
	if err := build.InstallPackages(ctx, o.Out, groups...); err != nil {
		return nil, nil, err
	}
	binaries, err := builder.Build(ctx, groups...)
	if err != nil {
		return nil, nil, err
	}
	if slices.Contains(groups, build.GroupNFS) {
		binaries[NFSServer] = build.NFSServer
	}
	in := images.Input{Busybox: build.Busybox(), Agnhost: binaries[build.Agnhost]}
	layout, err := images.Build(ctx, builder.Cache, in)
	if err != nil {
		return nil, nil, err
	}
	layouts := []string{layout}
	if slices.Contains(groups, build.GroupConformance) || slices.Contains(groups, build.GroupNodeConformance) {
		source, err := builder.ModuleDir(ctx, "conformance", "k8s.io/kubernetes")
		if err != nil {
			return nil, nil, err
		}
		suite, err := images.BuildSuite(ctx, builder.Cache,
			images.SuiteInput{Input: in, Sources: filepath.Join(source, "test/images"), Out: o.Out})
		if err != nil {
			return nil, nil, err
		}
		plugin, err := images.BuildDevicePlugin(builder.Cache, binaries[build.SamplePlugin])
		if err != nil {
			return nil, nil, err
		}
		layouts = append(layouts, suite, plugin)
	}
	if slices.Contains(groups, build.GroupKubeadm) {
		version, err := build.Version(builder.Tools, build.Kubeadm)
		if err != nil {
			return nil, nil, err
		}
		iptables, err := exec.LookPath("iptables")
		if err != nil {
			return nil, nil, fmt.Errorf("make the image of kube-proxy: %w", err)
		}
		cluster, err := images.BuildKubeadm(ctx, builder.Cache, version, iptables, binaries)
		if err != nil {
			return nil, nil, err
		}
		layouts = append(layouts, cluster)
	}
	if slices.Contains(groups, build.GroupCSIMock) {
		mock, err := images.BuildCSIMock(ctx, builder.Cache, binaries, o.Out)
		if err != nil {
			return nil, nil, err
		}
		layouts = append(layouts, mock)
	}
	return binaries, layouts, nil
}

func newBuilder(o Options) (*build.Builder, error) {
	tools, err := build.Locate(o.Source)
	if err != nil {
		return nil, err
	}
	cache, err := build.CacheDir()
	return &build.Builder{Tools: tools, Cache: cache, Out: o.Out}, err
}

// Up builds what the cache lacks, makes a new instance, starts it and waits
// until its control plane, runtime and registry work and, with an agent, its
// node is Ready. On failure it takes everything away again, unless Options.Keep.
func Up(ctx context.Context, o Options) (*Instance, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("the rig needs root: it makes cgroups, mounts and a bridge")
	}
	if err := o.findMicrolet(); err != nil {
		return nil, err
	}
	provide := prepare
	if o.nodeAlone() {
		provide = prepareNode
	}
	binaries, layouts, err := provide(ctx, o)
	if err != nil {
		return nil, err
	}
	onMachine, err := o.prepareMachine(ctx)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	boot, err := process.BootID()
	if err != nil {
		return nil, err
	}
	r, err := reserve(ctx, record{
		Name:          o.Name,
		Dir:           o.Dir,
		BootID:        boot,
		CreatedAt:     time.Now(),
		Agent:         o.Agent,
		AgentArgs:     o.AgentArgs,
		AgentEnv:      o.AgentEnv,
		Watchdog:      o.AgentWatchdog,
		DefaultPlaces: o.DefaultPlaces,
		Standalone:    o.Standalone,
		Open:          o.Open,
		Microlet:      o.Microlet,
		Binaries:      binaries,
		Processes:     map[string]process.Record{},
		Machine:       onMachine,
	})
	if err != nil {
		return nil, err
	}
	i, err := attach(r, o.Out)
	if err != nil {
		return nil, err
	}
	err = i.setup(ctx, o)
	if err == nil {
		err = i.startAll(ctx, layouts)
	}
	if err != nil {
		if o.Keep {
			return nil, fmt.Errorf("start instance %s (kept: look at %s, then rig down %s): %w", o.Name, i.Dir(),
				o.Name, err)
		}
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("start instance %s: %w", o.Name, err), i.Down(cleanup, Fast))
	}
	i.printf("instance %s is up after %s", o.Name, time.Since(begin).Round(100*time.Millisecond))
	return i, nil
}

func (o *Options) findMicrolet() error {
	if o.Agent != AgentMicrolet {
		return nil
	}
	if o.Microlet == "" {
		tools, err := build.Locate(o.Source)
		if err != nil {
			return err
		}
		o.Microlet = filepath.Join(tools, "../../bin/microlet")
	}
	path, err := filepath.Abs(o.Microlet)
	if err != nil {
		return fmt.Errorf("microlet executable %q: %w", o.Microlet, err)
	}
	o.Microlet = path
	if info, err := os.Stat(path); err != nil {
		return fmt.Errorf("microlet executable: %w: build it (make build), say where it is (--microlet), or choose "+
			"another agent", err)
	} else if info.IsDir() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("microlet executable %s is not an executable file", path)
	}
	return nil
}

// setup makes all that is there before the first program.
func (i *Instance) setup(ctx context.Context, o Options) error {
	// Not --root-dir and podLogsDir: an agent makes its own, and how it does is what another one finds.
	for _, dir := range []string{i.r.Dir, filepath.Join(i.r.Dir, "registry"), filepath.Join(i.r.Dir, "logs")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make instance folder: %w", err)
		}
	}
	if err := i.mountDisks(ctx, o); err != nil {
		return err
	}
	// Sockets and state go to a tmpfs also where /run is none: a rig must not
	// be slower than a server because of the disk below its sockets.
	if err := mounts.Tmpfs(i.runDir()); err != nil {
		return err
	}
	changed, err := network.EnableForwarding()
	if err != nil {
		return err
	}
	if changed {
		i.printf("set net.ipv4.ip_forward=1; it stays so")
	}
	if err := network.Setup(i.r.Network, i.r.Name); err != nil {
		return err
	}
	if err := i.tree.Create(i.ownCgroup(), true); err != nil {
		return err
	}
	for _, name := range i.programs() {
		if err := i.tree.Create(i.programCgroup(name), false); err != nil {
			return err
		}
	}
	if err := pki.Write(pki.Input{
		Dir: i.pkiDir(), Server: i.server(), Cluster: "rig-" + i.r.Name, NodeName: i.NodeName(),
		ServerIPs: []net.IP{i.r.Network.Server.Addr().AsSlice(), i.r.Network.APIService.AsSlice()},
	}, time.Now()); err != nil {
		return err
	}
	if err := i.writeAuditPolicy(); err != nil {
		return err
	}
	if err := i.writeCollectorConfig(); err != nil {
		return err
	}
	if err := i.link(i.binDir(), []string{build.Shim, build.Runc}); err != nil {
		return err
	}
	if !o.nodeAlone() {
		if err := i.link(i.binDir(), clusterTools); err != nil {
			return err
		}
	}
	if i.onMachine() {
		return i.stageMachine(o)
	}
	if err := i.containerdConfig().Write(); err != nil {
		return err
	}
	if err := i.link(i.containerdConfig().PluginDir, build.CNIPlugins); err != nil {
		return err
	}
	if err := config.ResolvConf(i.resolvConf()); err != nil {
		return err
	}
	if o.DefaultPlaces {
		if err := i.makeDefaultPlaces(); err != nil {
			return err
		}
	}
	return i.writeKubeletConfig(o)
}

func (i *Instance) resolvConf() string { return filepath.Join(i.r.Dir, "etc/resolv.conf") }

// writeKubeletConfig writes the configuration of an agent on this machine.
func (i *Instance) writeKubeletConfig(o Options) error {
	k := config.Kubelet{
		RuntimeEndpoint: i.RuntimeEndpoint(),
		CgroupDriver:    o.CgroupDriver,
		CgroupRoot:      i.ownCgroup(),
		PodLogs:         i.PodLogsDir(),
		NodeIP:          i.r.Network.NodeIP,
		HealthPort:      i.r.Ports.AgentHealth,
		DNS:             i.r.Network.DNSService,
		ResolvConf:      i.resolvConf(),
		ClientCA:        filepath.Join(i.pkiDir(), pki.CA),
		PluginDir:       filepath.Join(i.r.Dir, "volume-plugins"),
		MaxPods:         int32(o.MaxPods),
		ForeignNodeFs:   o.NodeDisk == 0,
		ForeignImageFs:  o.ImageDisk == 0,
		NoReviews:       i.r.Standalone,
		TraceEndpoint:   i.traceEndpoint(),
	}
	if o.DefaultPlaces {
		k.CgroupRoot, k.StaticPods, k.ReadOnlyPort, k.ForSuite = "/", i.staticPodsDir(), ReadOnlyPort, true
	}
	return k.Write(i.KubeletConfig())
}

// mountDisks gives the agent and containerd filesystems of their own.
func (i *Instance) mountDisks(ctx context.Context, o Options) error {
	const mebibyte = 1 << 20
	for dir, size := range map[string]int{i.RootDir(): o.NodeDisk, i.RuntimeRoot(): o.ImageDisk} {
		if size == 0 {
			continue
		}
		if err := mounts.Loop(ctx, dir+".ext4", dir, int64(size)*mebibyte); err != nil {
			return err
		}
	}
	return nil
}

// link makes links to built programs in a folder of the instance.
func (i *Instance) link(dir string, names []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("link programs: %w", err)
	}
	for _, name := range names {
		if err := os.Symlink(i.r.Binaries[name], filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("link programs: %w", err)
		}
	}
	return nil
}

// startAll starts the programs, each as soon as what it needs is ready.
func (i *Instance) startAll(ctx context.Context, layouts []string) error {
	group, ctx := errgroup.WithContext(ctx)
	runtimeReady := make(chan struct{})
	group.Go(func() error {
		if err := i.start(ctx, Registry); err != nil {
			return err
		}
		return i.push(ctx, layouts)
	})
	if i.hasTraces() {
		group.Go(func() error { return i.startTraces(ctx) })
	}
	group.Go(func() error {
		if i.onMachine() {
			if err := i.startMachine(ctx); err != nil {
				return err
			}
		}
		if err := i.start(ctx, Containerd); err != nil {
			return err
		}
		close(runtimeReady)
		return nil
	})
	group.Go(func() error {
		if !i.Standalone() || i.onMachine() {
			if err := i.startControlPlane(ctx, group); err != nil {
				return err
			}
		}
		if i.Agent() == AgentNone {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-runtimeReady:
		}
		if err := i.start(ctx, AgentProgram); err != nil {
			return err
		}
		if i.Standalone() {
			return i.waitStandalone(ctx)
		}
		// A new Node has no Ready of an earlier life, and a kubelet may take
		// 10 s to its first Lease.
		return i.waitNodeReady(ctx, func(context.Context, kubernetes.Interface) error { return nil })
	})
	return group.Wait()
}

// startControlPlane starts the control plane, and in the group what can wait for others of it.
func (i *Instance) startControlPlane(ctx context.Context, group *errgroup.Group) error {
	for _, name := range []string{Etcd, APIServer} {
		if err := i.start(ctx, name); err != nil {
			return err
		}
	}
	group.Go(func() error { return i.start(ctx, Scheduler) })
	group.Go(func() error {
		if err := i.start(ctx, ControllerManager); err != nil {
			return err
		}
		return i.bootstrap(ctx)
	})
	return nil
}

func (i *Instance) push(ctx context.Context, layouts []string) error {
	for _, layout := range layouts {
		if err := images.Push(ctx, layout, i.Registry()); err != nil {
			return err
		}
	}
	return nil
}

// start starts one program, records it and waits until it is ready.
func (i *Instance) start(ctx context.Context, name string) error {
	if i.isUnit(name) {
		return i.startUnit(ctx, name)
	}
	begin := time.Now()
	p, err := i.launch(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readiness)
	defer cancel()
	if err := process.Await(ctx, p, i.Log(name), i.check(name)); err != nil {
		return err
	}
	i.printf("%s is ready after %s", name, time.Since(begin).Round(100*time.Millisecond))
	return nil
}

func (i *Instance) launch(name string) (process.Record, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if p := i.r.Processes[name]; p.Alive() {
		return p, fmt.Errorf("start %s: it runs already with pid %d", name, p.PID)
	}
	if name == AgentProgram {
		if err := i.prepareDevicePlugins(); err != nil {
			return process.Record{}, err
		}
	}
	p, err := process.Start(i.spec(name))
	if err != nil {
		return p, err
	}
	i.r.Processes[name] = p
	return p, i.r.save()
}
