package scene

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/rig"
)

// Node is what all scenarios of a package share: one rig and the record of it.
type Node struct {
	*rig.Instance
	// API is the administrator's client.
	API kubernetes.Interface
	// Record is the record of every change of the run.
	Record *record.Recorder
	// Executable is the path of the microlet binary.
	Executable string
	// LostNamespaces are network namespaces that a killed runtime no longer knew. They outlive the scenario that killed
	// it.
	LostNamespaces map[string]bool
	// up brings the rig up, once.
	up func() error
}

// Shared is the node of the run. Its rig comes up when the first scenario asks for an agent, so that a run of which no
// scenario is chosen starts none.
var Shared = &Node{LostNamespaces: map[string]bool{}}

// FirstAgent is the agent that the rig starts with, to which a scenario returns that had the node run something
// special.
var FirstAgent = defaultAgent

// startTimeout is enough for a cold cache, which is filled first.
const startTimeout = 25 * time.Minute

// Options are what the scenarios of a package need of their rig.
type Options struct {
	// Agent is the agent that the rig starts with. The default is microlet, and in a long run the kubelet.
	Agent rig.Agent
	// With names groups of programs that the rig has besides: see rig.Options.
	With []string
	// NodeDisk and ImageDisk are in MiB: see rig.Options.
	NodeDisk, ImageDisk int
}

// Main runs the tests of a package and takes their rig down, whatever happens. It returns the exit code.
func Main(m *testing.M, options Options) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if options.Agent != "" {
		FirstAgent = options.Agent
	}
	Shared.up = sync.OnceValue(func() error { return Shared.start(ctx, options) })
	// An interrupted run takes its rig down too.
	down := sync.OnceValue(Shared.down)
	interrupted := context.AfterFunc(ctx, func() {
		if err := down(); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
		}
		os.Exit(130)
	})
	code = m.Run()
	if !interrupted() {
		select {} // the interrupt's own way ends the process
	}
	if code != 0 {
		Shared.keepLogs()
	}
	if err := down(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	return code
}

// EnsureUp brings the rig up, unless it is up. What makes an agent run does so by itself.
func (n *Node) EnsureUp(t *testing.T) {
	t.Helper()
	if err := n.up(); err != nil {
		t.Fatal("e2e: ", err)
	}
}

// start brings the rig up, and the record of it.
func (n *Node) start(ctx context.Context, options Options) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	top, err := Checkout()
	if err != nil {
		return err
	}
	n.Executable = filepath.Join(top, "bin", "microlet")
	if _, err := os.Stat(n.Executable); err != nil {
		return fmt.Errorf("%w: run make build first", err)
	}
	i, err := rig.Up(ctx,
		rig.Options{
			Name:         fmt.Sprintf("e2e-%d", os.Getpid()),
			Agent:        FirstAgent,
			Microlet:     n.Executable,
			With:         slices.Concat(options.With, alwaysWith),
			NodeDisk:     options.NodeDisk,
			ImageDisk:    options.ImageDisk,
			Machine:      onMachine,
			CgroupDriver: cgroupDriver,
			Out:          os.Stderr,
		})
	if err != nil {
		return err
	}
	i.SetOutput(io.Discard)
	n.Instance = i
	if n.API, err = i.Client(); err != nil {
		return err
	}
	config, err := i.RESTConfig()
	if err != nil {
		return err
	}
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return fmt.Errorf("read the administrator's certificate: %w", err)
	}
	n.Record, err = record.Start(ctx, record.Options{Address: i.EtcdAddress(), TLS: tls, Node: i.NodeName()})
	if err != nil {
		return err
	}
	// The kubelet is Ready before it has a Lease.
	return n.Record.Wait(ctx, func(v record.View) error {
		if v.Lease() == nil {
			return errors.New("the node has no Lease")
		}
		return nil
	})
}

// down takes the rig away and fails when anything of it is left.
func (n *Node) down() error {
	if n.Instance == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	var broken error
	if n.Record != nil {
		broken = n.Record.Close()
	}
	if err := n.Down(ctx); err != nil {
		return errors.Join(broken, err)
	}
	left, err := n.Leftovers(ctx)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("left of the rig after its end:\n%s", strings.Join(left, "\n"))
	}
	return errors.Join(broken, err)
}

// keepLogs saves the logs of a failed run, which otherwise go with the rig.
func (n *Node) keepLogs() {
	if n.Instance == nil {
		return
	}
	target := filepath.Join(os.TempDir(), "microlet-"+n.Name()+"-logs")
	if n.OnMachine() {
		if err := n.keepJournal(target); err != nil {
			fmt.Fprintln(os.Stderr, "e2e: journal not kept:", err)
		}
	}
	if err := os.CopyFS(target, os.DirFS(filepath.Dir(n.Log(rig.AgentProgram)))); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: logs not kept:", err)
		return
	}
	fmt.Fprintln(os.Stderr, "e2e: the logs of the rig's programs are in", target)
}

// CRI calls f with a connection to the runtime, which is closed again: only podsync may stay connected.
func (n *Node) CRI(f func(runtimeapi.RuntimeServiceClient) error) error {
	conn, err := n.DialRuntime()
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(runtimeapi.NewRuntimeServiceClient(conn))
}

// Checkout is the top of the checkout that the tests are of.
func Checkout() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		switch _, err := os.Stat(filepath.Join(dir, "go.work")); {
		case err == nil:
			return dir, nil
		case dir == filepath.Dir(dir):
			return "", errors.New("no go.work above the working directory: run the scenarios in the checkout")
		}
	}
}
