package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
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

// Node is what all scenarios of a run share: one rig and the record of it.
type Node struct {
	*rig.Instance
	API        kubernetes.Interface
	Record     *record.Recorder
	Executable string // the executable
	// lost are network namespaces that a killed runtime no longer knew. They outlive the scenario that killed it.
	LostNamespaces map[string]bool
}

// Shared is set before the first scenario.
var Shared *Node

// startTimeout is enough for a cold cache, which is filled first.
const startTimeout = 25 * time.Minute

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

// run brings the rig up, runs the scenarios and takes the rig down, whatever happens.
func run(m *testing.M) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	n, err := start(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	Shared = n
	// An interrupted run takes its rig down too.
	down := sync.OnceValue(n.down)
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
		n.keepLogs()
	}
	if err := down(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	return code
}

func start(ctx context.Context) (_ *Node, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	microlet, err := filepath.Abs("../../bin/microlet")
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(microlet); err != nil {
		return nil, fmt.Errorf("%w: run make build first", err)
	}
	with := besides
	if onMachine { // of which no scenario asks for what the others need
		with = besidesThere
	}
	i, err := rig.Up(ctx,
		rig.Options{
			Name:         fmt.Sprintf("e2e-%d", os.Getpid()),
			Agent:        FirstAgent,
			Microlet:     microlet,
			With:         with,
			Machine:      onMachine,
			CgroupDriver: cgroupDriver,
			Out:          os.Stderr,
		})
	if err != nil {
		return nil, err
	}
	i.SetOutput(io.Discard)
	n := &Node{Instance: i, Executable: microlet, LostNamespaces: map[string]bool{}}
	defer func() {
		if err != nil {
			n.keepLogs()
			err = errors.Join(err, n.down())
		}
	}()
	if n.API, err = i.Client(); err != nil {
		return nil, err
	}
	config, err := i.RESTConfig()
	if err != nil {
		return nil, err
	}
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("read the administrator's certificate: %w", err)
	}
	n.Record, err = record.Start(ctx, record.Options{Address: i.EtcdAddress(), TLS: tls, Node: i.NodeName()})
	if err != nil {
		return nil, err
	}
	// The kubelet is Ready before it has a Lease.
	return n, n.Record.Wait(ctx, func(v record.View) error {
		if v.Lease() == nil {
			return errors.New("the node has no Lease")
		}
		return nil
	})
}

// down takes the rig away and fails when anything of it is left.
func (n *Node) down() error {
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
