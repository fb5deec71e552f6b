package pods

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
	"github.com/microlet/microlet/services/podsync/internal/criconfig"
	volume "github.com/microlet/microlet/services/podsync/internal/volumes"
)

// changing has one Secret and one ConfigMap of every name, with the number of the last change.
type changing struct{ changes atomic.Int32 }

func (c *changing) text() string { return strconv.Itoa(int(c.changes.Load())) }

func (c *changing) Secret(context.Context, string, string) (*v1.Secret, error) {
	return &v1.Secret{Data: map[string][]byte{"file": []byte(c.text())}}, nil
}

func (c *changing) ConfigMap(context.Context, string, string) (*v1.ConfigMap, error) {
	return &v1.ConfigMap{Data: map[string]string{"file": c.text()}}, nil
}

// forgetful holds nothing of pods.
type forgetful struct{ volume.Tokens }

func (forgetful) Forget(types.UID) {}

// binding is a Config whose containers get the subPaths that they mount.
type binding struct {
	*node
	volumes *volume.Manager
}

func (b binding) Container(ctx context.Context, p *v1.Pod, c *v1.Container,
	in criconfig.ContainerInput) (*runtimeapi.ContainerConfig, error) {
	config, err := b.node.Container(ctx, p, c, in)
	for i, m := range c.VolumeMounts {
		var source string
		if err == nil {
			source, err = b.volumes.SubPath(ctx, volume.SubPath{
				Pod: p, Volume: m.Name, Container: c.Name, Index: i, Root: in.Volumes[m.Name].HostPath, Path: m.SubPath,
			})
			config.Mounts = append(config.Mounts, &runtimeapi.Mount{HostPath: source})
		}
	}
	return config, err
}

// withFiles is a pod whose containers mount a file of each kind of volume that is renewed.
func withFiles() *v1.Pod {
	p, mode := testPod("a"), int32(0o644)
	p.Labels = map[string]string{"change": "0"}
	label := []v1.DownwardAPIVolumeFile{{Path: "file", FieldRef: &v1.ObjectFieldSelector{
		FieldPath: "metadata.labels['change']",
	}}}
	object := v1.LocalObjectReference{Name: "object"}
	for name, source := range map[string]v1.VolumeSource{
		"configmap": {ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: object, DefaultMode: &mode}},
		"secret":    {Secret: &v1.SecretVolumeSource{SecretName: "object", DefaultMode: &mode}},
		"downward":  {DownwardAPI: &v1.DownwardAPIVolumeSource{Items: label, DefaultMode: &mode}},
		"projected": {Projected: &v1.ProjectedVolumeSource{DefaultMode: &mode, Sources: []v1.VolumeProjection{
			{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: object}},
		}}},
	} {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts,
			v1.VolumeMount{Name: name, MountPath: "/" + name, SubPath: "file"})
	}
	setup := p.Spec.Containers[0].DeepCopy()
	setup.Name = "setup"
	p.Spec.InitContainers = []v1.Container{*setup}
	return p
}

// noting notes in the node that the volumes of a pod are gone.
type noting struct {
	*volume.Manager
	of *node
}

func (v noting) Unmount(ctx context.Context, uid types.UID) error {
	return errors.Join(v.Manager.Unmount(ctx, uid), v.of.Unmount(ctx, uid))
}

// subPaths are starts of containers that mount files of volumes.
type subPaths struct {
	t       *testing.T
	root    string
	cri     *fake.Runtime
	objects changing
	starts  map[string]int
}

// node is one with real volumes. All that they are made from changes between the creation of a container and its
// start, where the runtime mounts.
func (s *subPaths) node() *node {
	n := newNode(s.t, s.cri)
	volumes := volume.NewManager(volume.ManagerOptions{
		RootDir: s.root, Objects: &s.objects, Tokens: forgetful{}, Mounter: mount.New(""), Foreign: volume.Operations(),
		Log: slog.New(slog.DiscardHandler),
	})
	n.dispatcher.deps.Volumes, n.dispatcher.deps.Config = noting{volumes, n}, binding{n, volumes}
	n.judge.created = func(c *v1.Container) runtime.Check {
		return func(context.Context, string) error {
			s.change(n)
			s.starts[c.Name]++
			for i, m := range c.VolumeMounts {
				source := filepath.Join(s.root, "pods/a/volume-subpaths", m.Name, c.Name, strconv.Itoa(i))
				if err := bindAsARuntime(source); err != nil {
					s.t.Errorf("start %d of %s: %s cannot be mounted: %v", s.starts[c.Name], c.Name, m.Name, err)
				}
			}
			return nil
		}
	}
	return n
}

func (s *subPaths) change(n *node) {
	s.objects.changes.Add(1)
	p := withFiles()
	p.Labels["change"] = s.objects.text()
	n.dispatcher.SetPod(p, api)
	n.workers.Refresh("a", "object")
	time.Sleep(5 * time.Second) // whatever is renewed at once is renewed by then
}

// bindAsARuntime binds a file somewhere.
func bindAsARuntime(source string) error {
	target, err := os.CreateTemp("", "mounted")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(target.Name()) }()
	defer target.Close()
	if err := unix.Mount(source, target.Name(), "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Unmount(target.Name(), unix.MNT_DETACH)
}

// TestNoRenewalTakesAFileFromAStart is about a container's first start, one after a restart of podsync, and one after a
// crash. The kernel does not mount a file that was removed.
func TestNoRenewalTakesAFileFromAStart(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := &subPaths{t: t, root: root, cri: newRuntime(), starts: map[string]int{}}
		n := s.node()
		stop := n.run()
		n.apply(withFiles())
		n.wait(10 * time.Second)
		setup := n.status("a").InitContainerStatuses
		if len(setup) != 1 || setup[0].State.Running == nil {
			t.Fatalf("the init container is not running: %+v", setup)
		}
		stop()
		s.objects.changes.Add(1)
		n = s.node()
		defer n.run()()
		n.apply(withFiles())
		if err := s.cri.ExitContainer(strings.TrimPrefix(setup[0].ContainerID, "containerd://"), 0); err != nil {
			t.Fatal(err)
		}
		n.workers.Wake("a", "test")
		n.wait(10 * time.Second)
		n.exit("c")
		n.wait(time.Minute)
		if s.starts["setup"] != 1 || s.starts["c"] != 2 {
			t.Fatalf("starts %v", s.starts)
		}
		for _, v := range withFiles().Spec.Volumes {
			there, err := filepath.Glob(filepath.Join(root, "pods/a/volumes/*", v.Name, "file"))
			if err != nil || len(there) != 1 {
				t.Fatalf("%s: %v, %v", v.Name, there, err)
			}
			if got, err := os.ReadFile(there[0]); err != nil || string(got) != s.objects.text() {
				t.Errorf("%s shows %q (%v) after the starts, want %s", v.Name, got, err, s.objects.text())
			}
		}
		n.dispatcher.SetPod(deleted(withFiles(), 1), api)
		n.wait(time.Minute)
		if !n.final["a"] {
			t.Error("the pod has not ended")
		}
	})
}
