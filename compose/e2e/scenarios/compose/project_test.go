//go:build compose

package compose

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/docker"
	"github.com/microlet/microlet/compose/rig"
)

const (
	// patience is how long one step may take on a machine that is busy.
	patience = 2 * time.Minute
	pause    = 300 * time.Millisecond
	// servicesCgroup is where compose.yaml expects the services with a daemon that makes cgroups itself.
	servicesCgroup = "/microlet"
	podsCgroup     = "/microlet-compose-pods"
)

// project is compose.yaml with a daemon of the test's own.
type project struct {
	*docker.Daemon
	dir  string
	tool string
	env  []string
}

// newProject starts a daemon that has the images.
func newProject(t *testing.T) *project {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("it needs root")
	}
	tool, err := rig.DockerCompose(t.Context(), rig.Options{Out: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/var/lib", "microlet-compose-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("left behind: %v", err)
		}
	})
	d, err := docker.Start(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	})
	p := &project{Daemon: d, dir: dir, tool: tool}
	if err := os.Mkdir(p.rootDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	p.env = append(os.Environ(), "DOCKER_HOST="+d.Host(), "DOCKER_CONFIG="+dir, "COMPOSE_FILE=../../../compose.yaml",
		"MICROLET_CGROUP_PARENT="+servicesCgroup, "MICROLET_ROOT_DIR="+p.rootDir())
	p.load(t)
	return p
}

// rootDir is the folder of the pods' volumes.
func (p *project) rootDir() string { return filepath.Join(p.dir, "kubelet") }

func (p *project) load(t *testing.T) {
	t.Helper()
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := rig.WriteImages(t.Context(), rig.Options{Out: os.Stderr, With: []string{"kubelet", "prometheus"}}, w)
		written <- err
		_ = w.CloseWithError(err)
	}()
	err := p.Load(t.Context(), r)
	_ = r.CloseWithError(err)
	if wrote := <-written; wrote != nil {
		t.Fatal(wrote)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// try runs Docker Compose and returns what it prints.
func (p *project) try(ctx context.Context, input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := p.command(ctx, args...)
	cmd.Stdin = strings.NewReader(input)
	var out, progress bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &progress
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("docker compose %s: %w: %s", strings.Join(args, " "), err,
			tail(progress.String()+out.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// command is a run of Docker Compose.
func (p *project) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.tool, args...)
	cmd.Env = p.env
	return cmd
}

// tail is the end of a text that may be long.
func tail(text string) string {
	const enough = 2000
	return text[max(0, len(text)-enough):]
}

// run is try for what has to work.
func (p *project) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := p.try(t.Context(), "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// kubectl runs it in its container.
func (p *project) kubectl(ctx context.Context, input string, args ...string) (string, error) {
	return p.try(ctx, input, append([]string{"exec", "-T", "kubectl", "kubectl"}, args...)...)
}

// onNode runs a command among the processes of the node.
func (p *project) onNode(ctx context.Context, args ...string) (string, error) {
	return p.try(ctx, "", append([]string{"exec", "-T", "node"}, args...)...)
}

// pids are those of a service's processes, as the node has them.
func (p *project) pids(ctx context.Context, service string) ([]string, error) {
	out, err := p.onNode(ctx, "ps", "-o", "pid,args")
	var found []string
	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		if len(words) > 2 && filepath.Base(words[1]) == "microlet" && words[2] == service {
			found = append(found, words[0])
		}
	}
	return found, err
}

// pods are those of the namespace default.
func (p *project) pods(ctx context.Context) ([]corev1.Pod, error) {
	out, err := p.kubectl(ctx, "", "get", "pods", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	return list.Items, json.Unmarshal([]byte(out), &list)
}

// await tries until it works.
func await(t *testing.T, what string, try func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waited %v for %s: %v", patience, what, err)
		case <-time.After(pause):
		}
	}
}
