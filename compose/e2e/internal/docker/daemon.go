package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Times of the daemon's start and stop.
const (
	readiness = time.Minute
	stopTime  = 30 * time.Second
	pollTime  = 200 * time.Millisecond
)

// cgroup is where the containers are that name no other.
const cgroup = "/microlet-docker-test"

// start runs as the first process of the namespaces: it reaps what others leave, and ends when the daemon does. What
// the daemon writes to /etc and /run, and each of its mounts, is in the mount namespace alone.
const start = `set -e
mount --make-rprivate /
mkdir -p "$DIR/etc" "$DIR/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$DIR/etc,workdir=$DIR/work" /etc
mount -t tmpfs tmpfs /run
mount -t proc proc /proc
mount --make-rshared /
dockerd --data-root "$DIR/data" --exec-root /run/docker --pidfile /run/docker.pid -H "unix://$DIR/docker.sock" \
	--cgroup-parent "$CGROUP" --exec-opt native.cgroupdriver=cgroupfs --userland-proxy=false \
	--config-file "$DIR/daemon.json" &
trap 'kill -TERM $!' TERM
set +e
wait $!; wait $!`

// Daemon is a Docker daemon with network, mount and PID namespaces of its own. All that it starts ends with it.
type Daemon struct {
	dir    string
	cmd    *exec.Cmd
	log    *os.File
	client *http.Client
	ended  chan error
}

// Start starts a daemon that keeps everything below the folder, and waits until it answers. It ends with the calling
// goroutine's thread, to which it locks the goroutine, if Stop is not called. It needs root and dockerd.
func Start(ctx context.Context, dir string) (*Daemon, error) {
	if err := os.WriteFile(filepath.Join(dir, "daemon.json"), []byte("{}"), 0o600); err != nil {
		return nil, fmt.Errorf("start dockerd: %w", err)
	}
	log, err := os.Create(filepath.Join(dir, "dockerd.log"))
	if err != nil {
		return nil, fmt.Errorf("start dockerd: %w", err)
	}
	d := &Daemon{dir: dir, log: log, ended: make(chan error, 1), client: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "docker.sock"))
		},
	}}}
	d.cmd = exec.Command("sh", "-c", start)
	d.cmd.Env = append(os.Environ(), "DIR="+dir, "CGROUP="+cgroup)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL,
	}
	runtime.LockOSThread()
	if err := d.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start dockerd: %w", err), log.Close())
	}
	go func() { d.ended <- d.cmd.Wait() }()
	if err := d.await(ctx); err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	return d, nil
}

func (d *Daemon) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readiness)
	defer cancel()
	for {
		_, err := d.get(ctx, "/_ping")
		if err == nil {
			return nil
		}
		select {
		case end := <-d.ended:
			d.ended <- end
			return fmt.Errorf("dockerd has ended: %w: see %s", end, d.log.Name())
		case <-ctx.Done():
			return fmt.Errorf("dockerd does not answer: %w: see %s", err, d.log.Name())
		case <-time.After(pollTime):
		}
	}
}

// Stop stops the daemon and all that it runs.
func (d *Daemon) Stop() error {
	d.client.CloseIdleConnections()
	err := d.cmd.Process.Signal(syscall.SIGTERM)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	select {
	case <-d.ended:
	case <-time.After(stopTime):
		err = errors.Join(errors.New("dockerd does not stop: killed"), d.cmd.Process.Kill())
		<-d.ended
	}
	return errors.Join(err, removeCgroup(), d.log.Close())
}

// removeCgroup removes what the daemon leaves in each hierarchy.
func removeCgroup() error {
	var errs []error
	for _, pattern := range []string{"/sys/fs/cgroup" + cgroup, "/sys/fs/cgroup/*" + cgroup} {
		dirs, err := filepath.Glob(pattern)
		errs = append(errs, err)
		for _, dir := range dirs {
			errs = append(errs, os.Remove(dir))
		}
	}
	return errors.Join(errs...)
}

// Host is the daemon's address, as DOCKER_HOST has it.
func (d *Daemon) Host() string { return "unix://" + filepath.Join(d.dir, "docker.sock") }

// Log is the file of what the daemon logs.
func (d *Daemon) Log() string { return d.log.Name() }

// Load loads images from an archive.
func (d *Daemon) Load(ctx context.Context, archive io.Reader) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://docker/images/load?quiet=1", archive)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-tar")
	text, err := d.do(req)
	if err == nil && strings.Contains(string(text), `"error"`) {
		err = errors.New(string(text))
	}
	if err != nil {
		return fmt.Errorf("load images: %w", err)
	}
	return nil
}

// Container is what the daemon says of one.
type Container struct {
	Name         string
	RestartCount int
	State        struct {
		Pid    int // in the daemon's PID namespace
		Health struct{ Status string }
	}
}

// Inspect asks for a container by its name.
func (d *Daemon) Inspect(ctx context.Context, name string) (c Container, err error) {
	return c, d.read(ctx, "/containers/"+name+"/json", &c)
}

// Left names the containers, volumes and networks that are there, but for the networks of the daemon itself.
func (d *Daemon) Left(ctx context.Context) ([]string, error) {
	var left []string
	var containers []struct{ Names []string }
	if err := d.read(ctx, "/containers/json?all=1", &containers); err != nil {
		return nil, err
	}
	for _, c := range containers {
		left = append(left, fmt.Sprintf("container %v", c.Names))
	}
	var volumes struct{ Volumes []struct{ Name string } }
	if err := d.read(ctx, "/volumes", &volumes); err != nil {
		return nil, err
	}
	for _, v := range volumes.Volumes {
		left = append(left, "volume "+v.Name)
	}
	var networks []struct{ Name string }
	if err := d.read(ctx, "/networks", &networks); err != nil {
		return nil, err
	}
	for _, n := range networks {
		if n.Name != "bridge" && n.Name != "host" && n.Name != "none" {
			left = append(left, "network "+n.Name)
		}
	}
	return left, nil
}

// Mounts are the mount points below the folder as the daemon sees them.
func (d *Daemon) Mounts(below string) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", d.cmd.Process.Pid))
	if err != nil {
		return nil, err
	}
	var points []string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], below) {
			points = append(points, fields[4])
		}
	}
	return points, nil
}

func (d *Daemon) read(ctx context.Context, path string, to any) error {
	text, err := d.get(ctx, path)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}

func (d *Daemon) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker"+path, nil)
	if err != nil {
		return nil, err
	}
	return d.do(req)
}

func (d *Daemon) do(req *http.Request) ([]byte, error) {
	resp, err := d.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", req.URL.Path, resp.Status, text)
	}
	return text, err
}
