package csivolume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csi/csitest"
)

func TestTwoPodsHaveOneVolume(t *testing.T) {
	d := csitest.Start(t, stages)
	root := t.TempDir()
	vs := newVolumes(t, root, d, unattached())
	for _, uid := range []string{"u1", "u2"} {
		published, err := vs.Publish(t.Context(), claimed(pod(uid), "h"))
		if err != nil {
			t.Fatal(err)
		}
		if want := filepath.Join(root, "pods", uid, "volumes/kubernetes.io~csi/pv-h/mount"); published.Path != want {
			t.Errorf("published at %s, want %s", published.Path, want)
		}
	}
	r := csitest.Last[*csi.NodePublishVolumeRequest](t, d)
	sum := "aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123" // sha256 of "h"
	want := filepath.Join(root, "plugins/kubernetes.io/csi", driverName, sum, "globalmount")
	if r.StagingTargetPath != want {
		t.Errorf("staged at %s, want %s", r.StagingTargetPath, want)
	}
	endOfTwoPods(t, vs, d)
}

// endOfTwoPods takes the volume h, which pods u1 and u2 have, from one after the other. Then it is unstaged.
func endOfTwoPods(t *testing.T, vs *Volumes, d *csitest.Driver) {
	t.Helper()
	for _, uid := range []types.UID{"u1", "u2"} {
		unstageAll(t, vs) // which must leave alone what a pod has
		if err := vs.Unpublish(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	unstageAll(t, vs)
	calls := []string{"NodeStageVolume h", "NodePublishVolume h", "NodePublishVolume h", "NodeUnpublishVolume h",
		"NodeUnpublishVolume h", "NodeUnstageVolume h"}
	if got := d.Calls(); !slices.Equal(got, calls) {
		t.Errorf("calls: %q, want %q", got, calls)
	}
	if found := left(t, vs.layout.root); len(found) > 0 {
		t.Errorf("left: %q", found)
	}
}

// subPaths are those of a pod, of which one volume's hang.
type subPaths struct {
	hangs string
	d     *csitest.Driver

	mu    sync.Mutex
	asked map[string][]string // the driver's calls until then
}

func (s *subPaths) Unmount(_ context.Context, pod types.UID, volume string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[string(pod)+" "+filepath.Base(filepath.Dir(volume))+" "+filepath.Base(volume)] = s.d.Calls()
	if filepath.Base(filepath.Dir(volume)) == s.hangs {
		return errors.New("has not answered")
	}
	return nil
}

// A subPath is unmounted before its volume. One that hangs keeps only its own volume.
func TestSubPathsAreUnmountedBeforeTheirVolume(t *testing.T) {
	d := csitest.Start(t, stages)
	vs := newVolumes(t, t.TempDir(), d, unattached())
	for _, handle := range []string{"h", "i"} {
		if _, err := vs.Publish(t.Context(), claimed(pod("u1"), handle)); err != nil {
			t.Fatal(err)
		}
	}
	s := &subPaths{hangs: "pv-h", d: d, asked: map[string][]string{}}
	vs.o.SubPaths = s
	if err := vs.Unpublish(t.Context(), "u1"); err == nil || err.Error() != "volume pv-h: has not answered" {
		t.Errorf("unpublished with %v", err)
	}
	for _, volume := range []string{"u1 pv-h mount", "u1 pv-i mount"} {
		before, ok := s.asked[volume]
		if !ok || volume == "u1 pv-i mount" && slices.Contains(before, "NodeUnpublishVolume i") {
			t.Errorf("subPaths of %s: asked %t, after %q", volume, ok, before)
		}
	}
	if calls := d.Calls(); !slices.Contains(calls, "NodeUnpublishVolume i") ||
		slices.Contains(calls, "NodeUnpublishVolume h") {
		t.Errorf("calls: %q", calls)
	}
	s.hangs = ""
	if err := vs.Unpublish(t.Context(), "u1"); err != nil {
		t.Error(err)
	}
}

// A process is killed at every call of a volume's life, before the driver has done what it was asked for and after. The
// next process ends the life. The driver reports what breaks the contract.
func TestKilledAtEveryCall(t *testing.T) {
	for name, v := range map[string]*Volume{"files": claimed(pod("u1"), "h"), "block": block(pod("u1"), "h")} {
		for _, when := range []string{"before", "after"} {
			for n := 1; ; n++ {
				lived := false
				t.Run(fmt.Sprintf("%s, %s call %d", name, when, n), func(t *testing.T) {
					lived = lifeWithAKill(t, v, n, when == "after")
				})
				if lived {
					if n != 5 {
						t.Errorf("a life has %d calls", n-1)
					}
					break
				}
			}
		}
	}
}

// lifeWithAKill lets a pod have a volume, with a process that dies at the n-th call and one that takes over. It returns
// true if the first one did not die.
func lifeWithAKill(t *testing.T, v *Volume, n int, after bool) (lived bool) {
	d := csitest.Start(t, stages)
	root, a := t.TempDir(), unattached()
	killed, kill := context.WithCancel(t.Context())
	defer kill()
	var count atomic.Int32
	d.Before(func(_ context.Context, method string) error {
		if !strings.HasSuffix(method, "Volume") || int(count.Add(1)) != n {
			return nil
		}
		kill()
		if after {
			return nil // the driver goes on, and its answer is lost
		}
		return status.Error(codes.Aborted, "killed")
	})
	first := newVolumes(t, root, d, a)
	err := errors.Join(give(killed, first, v), down(killed, first))
	if err == nil && killed.Err() == nil {
		return true
	}
	first.locks.calls.end() // the driver's work, too
	second := newVolumes(t, root, d, a)
	unstageAll(t, second) // which may come before the pod
	if int(count.Load()) <= 2 {
		if err := give(t.Context(), second, v); err != nil {
			t.Fatal(err)
		}
	}
	if err := second.Unpublish(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	unstageAll(t, second)
	if found := append(left(t, root), d.Left()...); len(found) > 0 {
		t.Errorf("left: %q", found)
	}
	return false
}

func up(ctx context.Context, vs *Volumes) error { return give(ctx, vs, claimed(pod("u1"), "h")) }

func give(ctx context.Context, vs *Volumes, v *Volume) error {
	_, err := vs.Publish(ctx, v)
	return err
}

func down(ctx context.Context, vs *Volumes) error {
	if err := vs.Unpublish(ctx, "u1"); err != nil {
		return err
	}
	all, err := vs.mayBeStaged()
	if err != nil {
		return err
	}
	for _, v := range all {
		if err := vs.unstage(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

func TestWhatADriverIsTold(t *testing.T) {
	d := csitest.Start(t, stages)
	a := unattached()
	a.driver.Spec.PodInfoOnMount = new(true)
	a.driver.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: "vault"}, {}}
	a.secrets = map[string]*v1.Secret{
		"secrets/stage":   {Data: map[string][]byte{"key": []byte("of the stage")}},
		"secrets/publish": {Data: map[string][]byte{"key": []byte("of the pod")}},
	}
	vs := newVolumes(t, t.TempDir(), d, a)
	v := claimed(pod("u1"), "h")
	v.ReadOnly = true
	v.PV.Spec.MountOptions = []string{"noatime"}
	v.PV.Spec.CSI.VolumeAttributes = map[string]string{"of": "volume"}
	v.PV.Spec.CSI.NodeStageSecretRef = &v1.SecretReference{Namespace: "secrets", Name: "stage"}
	v.PV.Spec.CSI.NodePublishSecretRef = &v1.SecretReference{Namespace: "secrets", Name: "publish"}
	if _, err := vs.Publish(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	stage := csitest.Last[*csi.NodeStageVolumeRequest](t, d)
	if stage.Secrets["key"] != "of the stage" || len(stage.VolumeContext) != 1 {
		t.Errorf("staged with %v and %v", stage.Secrets, stage.VolumeContext)
	}
	publish := csitest.Last[*csi.NodePublishVolumeRequest](t, d)
	m := publish.VolumeCapability.GetMount()
	if !publish.Readonly || m.FsType != "ext4" || !slices.Equal(m.MountFlags, []string{"noatime"}) ||
		publish.VolumeCapability.AccessMode.Mode != csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER {
		t.Errorf("published with %v", publish.VolumeCapability)
	}
	want := map[string]string{
		"of": "volume", keyPodName: "p", keyPodNamespace: "default", keyPodUID: "u1", keyServiceAccount: "sa",
		keyEphemeral: "false",
	}
	for k, value := range want {
		if publish.VolumeContext[k] != value {
			t.Errorf("%s is %q, want %q", k, publish.VolumeContext[k], value)
		}
	}
	var tokens map[string]authenticationv1.TokenRequestStatus
	if err := json.Unmarshal([]byte(publish.VolumeContext[keyTokens]), &tokens); err != nil ||
		tokens["vault"].Token != "default/sa for [vault]" || tokens[""].Token != "default/sa for []" {
		t.Errorf("tokens: %v, %v", tokens, err)
	}
	if len(v.PV.Spec.CSI.VolumeAttributes) != 1 {
		t.Errorf("the PersistentVolume was changed: %v", v.PV.Spec.CSI.VolumeAttributes)
	}
	a.driver.Spec.ServiceAccountTokenInSecrets = new(true)
	if _, err := vs.Publish(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	publish = csitest.Last[*csi.NodePublishVolumeRequest](t, d)
	if publish.VolumeContext[keyTokens] != "" || publish.Secrets[keyTokens] == "" || publish.Secrets["key"] == "" {
		t.Error("tokens are not in secrets alone")
	}
	release(t, vs, "u1")
}

// The secrets of an inline volume are those of the pod's namespace, whatever name it gives.
func TestAnInlineVolumeGetsNoOtherNamespacesSecret(t *testing.T) {
	d := csitest.Start(t)
	a := unattached()
	a.secrets = map[string]*v1.Secret{"other/s": {Data: map[string][]byte{"key": []byte("not yours")}}}
	vs := newVolumes(t, t.TempDir(), d, a)
	for _, name := range []string{"s", "other/s", "../other/s"} {
		_, err := vs.Publish(t.Context(), &Volume{Pod: pod("u1"), Name: "v", Inline: &v1.CSIVolumeSource{
			Driver: driverName, NodePublishSecretRef: &v1.LocalObjectReference{Name: name},
		}})
		want := "MountVolume.SetUp failed: fetching NodePublishSecretRef default/" + name + " failed: "
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("secret %q: %v, want %s", name, err, want)
		}
	}
	if calls := d.Calls(); len(calls) > 0 {
		t.Errorf("calls: %q", calls)
	}
}

func release(t *testing.T, vs *Volumes, pods ...types.UID) {
	t.Helper()
	for _, uid := range pods {
		if err := vs.Unpublish(t.Context(), uid); err != nil {
			t.Error(err)
		}
	}
	unstageAll(t, vs)
}

func TestAnInlineVolumeIsNotStaged(t *testing.T) {
	d := csitest.Start(t, stages)
	a := unattached()
	a.driver.Spec.PodInfoOnMount = new(true)
	root := t.TempDir()
	vs := newVolumes(t, root, d, a)
	v := &Volume{Pod: pod("u1"), Name: "scratch", Inline: &v1.CSIVolumeSource{Driver: driverName}}
	if _, err := vs.Publish(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	unstageAll(t, vs)
	release(t, vs, "u1")
	handle := inlineHandle("u1", "scratch")
	if want := []string{"NodePublishVolume " + handle, "NodeUnpublishVolume " + handle}; !slices.Equal(d.Calls(), want) {
		t.Errorf("calls: %q", d.Calls())
	}
	if found := left(t, root); len(found) > 0 {
		t.Errorf("left: %q", found)
	}
	a.driver.Spec.VolumeLifecycleModes = nil
	if _, err := vs.Publish(t.Context(), v); err == nil || !strings.Contains(err.Error(),
		`volume mode "Ephemeral" not supported by driver d.example (only supports [])`) {
		t.Errorf("a driver that takes no inline volumes: %v", err)
	}
}

func TestAVolumeThatIsAttached(t *testing.T) {
	d := csitest.Start(t, stages)
	a := &api{attachments: map[string]*storagev1.VolumeAttachment{}}
	vs := newVolumes(t, t.TempDir(), d, a)
	v := claimed(pod("u1"), "h")
	name := attachmentName(v.device(), "n")
	attachment := &storagev1.VolumeAttachment{}
	for _, step := range []struct {
		change func()
		want   string
	}{
		{func() {}, "MountVolume.WaitForAttach failed: volume h has GET error for volume attachment " + name},
		{func() { a.attachments[name] = attachment }, "volume h is not attached for volume attachment " + name},
		{func() { attachment.Status.AttachError = &storagev1.VolumeError{Message: "no place"} }, "no place"},
		{func() { attachment.DeletionTimestamp = new(metav1.Now()) }, "volume attachment is being deleted"},
	} {
		step.change()
		if _, err := vs.Publish(t.Context(), v); err == nil || !strings.Contains(err.Error(), step.want) {
			t.Errorf("%v, want %s", err, step.want)
		}
	}
	a.attachments[name] = &storagev1.VolumeAttachment{Status: storagev1.VolumeAttachmentStatus{
		Attached: true, AttachmentMetadata: map[string]string{"device": "/dev/x"},
	}}
	if _, err := vs.Publish(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	if r := csitest.Last[*csi.NodeStageVolumeRequest](t, d); r.PublishContext["device"] != "/dev/x" {
		t.Errorf("staged with %v", r.PublishContext)
	}
	release(t, vs, "u1")
}

// Without the controller no volume is attached, as with the kubelet, not even one that is attached already. Volumes
// that need no attachment are mounted.
func TestNobodyAttaches(t *testing.T) {
	d := csitest.Start(t, stages)
	v := claimed(pod("u1"), "h")
	a := &api{attachments: map[string]*storagev1.VolumeAttachment{attachmentName(v.device(), "n"): {
		Status: storagev1.VolumeAttachmentStatus{Attached: true},
	}}}
	vs := newVolumes(t, t.TempDir(), d, a)
	vs.o.ByNode = true
	const want = "AttachVolume.Attach failed: attaching volumes from the kubelet is not supported"
	if _, err := vs.Publish(t.Context(), v); err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
	v.PV.Spec.CSI.Driver = "unregistered.example"
	if _, err := vs.Publish(t.Context(), v); err == nil || err.Error() != want {
		t.Errorf("without the driver, error is %v, want %s", err, want)
	}
	v = claimed(pod("u1"), "h")
	vs = newVolumes(t, t.TempDir(), d, unattached())
	vs.o.ByNode = true
	if _, err := vs.Publish(t.Context(), v); err != nil {
		t.Errorf("a volume that need not be attached: %v", err)
	}
}

func TestFSGroup(t *testing.T) {
	policy := func(p storagev1.FSGroupPolicy) *storagev1.FSGroupPolicy { return &p }
	for name, c := range map[string]struct {
		change func(*Volume, *storagev1.CSIDriverSpec)
		can    []csi.NodeServiceCapability_RPC_Type
		gives  bool
	}{
		"default":    {func(*Volume, *storagev1.CSIDriverSpec) {}, nil, true},
		"no fsType":  {func(v *Volume, _ *storagev1.CSIDriverSpec) { v.PV.Spec.CSI.FSType = "" }, nil, false},
		"read-only":  {func(v *Volume, _ *storagev1.CSIDriverSpec) { v.ReadOnly = true }, nil, false},
		"no fsGroup": {func(v *Volume, _ *storagev1.CSIDriverSpec) { v.Pod.Spec.SecurityContext = nil }, nil, false},
		"policy None": {func(_ *Volume, s *storagev1.CSIDriverSpec) {
			s.FSGroupPolicy = policy(storagev1.NoneFSGroupPolicy)
		}, nil, false},
		"policy File": {func(v *Volume, s *storagev1.CSIDriverSpec) {
			v.PV.Spec.CSI.FSType, s.FSGroupPolicy = "", policy(storagev1.FileFSGroupPolicy)
		}, nil, true},
		"many writers": {func(v *Volume, _ *storagev1.CSIDriverSpec) {
			v.PV.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
		}, nil, false},
		"by the driver": {func(*Volume, *storagev1.CSIDriverSpec) {},
			[]csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP}, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := csitest.Start(t, c.can...)
			a := unattached()
			v := claimed(pod("u1"), "h")
			v.Pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: new(int64(4242))}
			c.change(v, &a.driver.Spec)
			vs := newVolumes(t, t.TempDir(), d, a)
			published, err := vs.Publish(t.Context(), v)
			if err != nil || published.GiveToGroup != c.gives {
				t.Errorf("given to the group: %t, %v", published.GiveToGroup, err)
			}
			group := csitest.Last[*csi.NodePublishVolumeRequest](t, d).VolumeCapability.GetMount().VolumeMountGroup
			if want := len(c.can) > 0; (group == "4242") != want {
				t.Errorf("the driver got the group %q", group)
			}
			release(t, vs, "u1")
		})
	}
}

func TestAVolumeOfAKubeletIsTakenBack(t *testing.T) {
	d := csitest.Start(t, stages)
	root := t.TempDir()
	vs := newVolumes(t, root, d, unattached())
	dir := filepath.Join(root, "pods/u1/volumes/kubernetes.io~csi/pv-h")
	device := vs.layout.device(device{driverName, "h"})
	for path, text := range map[string]string{
		filepath.Join(dir, dataFile): `{"attachmentID":"csi-1","driverName":"d.example","nodeName":"n",` +
			`"specVolID":"pv-h","volumeHandle":"h","volumeLifecycleMode":"Persistent"}`,
		filepath.Join(device, dataFile): `{"driverName":"d.example","volumeHandle":"h"}`,
		// Of a driver that stages nothing the kubelet has a folder alone.
		filepath.Join(root, "plugins/kubernetes.io/csi/d.example/other/globalmount/x"): "",
		// This belongs to no known volume: its file is empty.
		filepath.Join(root, "pods/u2/volumes/kubernetes.io~csi/pv-2", dataFile): "",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(root, "plugins/kubernetes.io/csi/d.example/other/globalmount/x")); err != nil {
		t.Fatal(err)
	}
	unstageAll(t, vs)
	if calls := d.Calls(); len(calls) > 0 {
		t.Errorf("a volume that a pod has got %q", calls)
	}
	release(t, vs, "u1", "u2")
	if want := []string{"NodeUnpublishVolume h", "NodeUnstageVolume h"}; !slices.Equal(d.Calls(), want) {
		t.Errorf("calls: %q", d.Calls())
	}
	if found := left(t, root); len(found) > 0 {
		t.Errorf("left: %q", found)
	}
}

// A kubelet that was killed, or a full disk, leaves an empty vol_data.json. The pod has its volume all the same.
func TestAVolumeThatIsMountedElsewhereStaysStaged(t *testing.T) {
	d := csitest.Start(t, stages)
	root := t.TempDir()
	vs := newVolumes(t, root, d, unattached())
	dir := vs.layout.device(device{driverName, "h"})
	if err := (volumeData{Driver: driverName, Handle: "h"}).save(dir); err != nil {
		t.Fatal(err)
	}
	staged := filepath.Join(dir, staging)
	mountAt(t, "tmpfs", staged, "tmpfs", 0)
	// Another volume of the same file system, such as a share, that a pod is known to have.
	mountAt(t, staged, vs.layout.target("u2", "pv-other"), "", unix.MS_BIND)
	other := volumeData{Driver: driverName, Handle: "other"}
	if err := other.save(vs.layout.volume("u2", "pv-other")); err != nil {
		t.Fatal(err)
	}
	unknown := vs.layout.target("u1", "pv-h")
	mountAt(t, staged, unknown, "", unix.MS_BIND)
	if err := os.WriteFile(filepath.Join(filepath.Dir(unknown), dataFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	v := stagedVolume{device: device{driverName, "h"}, dir: dir, path: staged}
	want := fmt.Sprintf("the device mount path %q is still mounted by other references [%s]", staged, unknown)
	if err := vs.unstage(t.Context(), v); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error is %v, want %s", err, want)
	}
	if calls := d.Calls(); len(calls) > 0 {
		t.Errorf("a volume that a pod has got %q", calls)
	}
	if err := unix.Unmount(unknown, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(staged, 0); err != nil { // the driver's part
		t.Fatal(err)
	}
	if err := vs.unstage(t.Context(), v); err != nil || !slices.Equal(d.Calls(), []string{"NodeUnstageVolume h"}) {
		t.Errorf("%v after %q", err, d.Calls())
	}
}

// A process was killed while it removed the folder of a volume, whose vol_data.json was gone already.
func TestAnEmptyFolderIsRemoved(t *testing.T) {
	root := t.TempDir()
	vs := newVolumes(t, root, csitest.Start(t, stages), unattached())
	full := vs.layout.device(device{driverName, "full"})
	empty := []string{vs.layout.device(device{driverName, "h"}), vs.layout.blockData("pv-h")}
	wanted := []string{vs.layout.device(device{driverName, "files"}), vs.layout.blockData("pv-block")}
	others := []string{
		full, filepath.Join(full, "x"), filepath.Join(vs.layout.devices(), driverName, "of-the-driver"),
		vs.layout.blockStaging("pv-h"),
	}
	for _, dir := range slices.Concat(empty, wanted, others) {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	for _, v := range []*Volume{claimed(pod("u1"), "files"), block(pod("u1"), "block")} {
		s, err := vs.begin(t.Context(), v)
		if err != nil {
			t.Fatal(err)
		}
		vs.hold(s) // its vol_data.json is about to be written
	}
	check := func(dirs []string, there bool) {
		t.Helper()
		for _, dir := range dirs {
			if exists(dir) != there {
				t.Errorf("%s is there: %t", dir, !there)
			}
		}
	}
	unstageAll(t, vs)
	check(empty, false)
	check(append(others, wanted...), true)
	release(t, vs, "u1")
	check(wanted, false)
	check(others, true)
}

func TestAHungDriverHoldsUpItsVolumeAlone(t *testing.T) {
	d := csitest.Start(t)
	hangs := make(chan struct{})
	d.Before(func(ctx context.Context, method string) error {
		if method == "NodePublishVolume" && len(csitest.Last[*csi.NodePublishVolumeRequest](t, d).TargetPath) > 0 &&
			csitest.Last[*csi.NodePublishVolumeRequest](t, d).VolumeId == "hung" {
			close(hangs)
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	vs := newVolumes(t, t.TempDir(), d, unattached())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := vs.Publish(ctx, claimed(pod("u1"), "hung"))
		done <- err
	}()
	<-hangs
	if _, err := vs.Publish(t.Context(), claimed(pod("u2"), "h")); err != nil {
		t.Errorf("another volume: %v", err)
	}
	soon, end := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer end()
	if _, err := vs.Publish(soon, claimed(pod("u3"), "hung")); err == nil {
		t.Error("the same volume is published while a call on it hangs")
	}
	cancel()
	if err := <-done; status.Code(errors.Unwrap(err)) != codes.Canceled {
		t.Errorf("the call that hung: %v", err)
	}
}

func TestNamesThatAreNoFolders(t *testing.T) {
	vs := newVolumes(t, t.TempDir(), csitest.Start(t), unattached())
	v := claimed(pod("u1"), "h")
	v.PV.Name = "../../pv"
	if _, err := vs.Publish(t.Context(), v); err == nil {
		t.Error("a PersistentVolume's name climbs")
	}
	v = claimed(pod("u1"), "h")
	v.PV.Spec.CSI.Driver = ".."
	if _, err := vs.Publish(t.Context(), v); err == nil {
		t.Error("a driver's name climbs")
	}
}
