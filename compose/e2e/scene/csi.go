package scene

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/compose/e2e/internal/csicalls"
	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/rig"
)

// CSI is the rig's CSI driver in a scenario, with the controllers beside it.
type CSI struct {
	*Scene
	// from is how many lines there were before the scenario.
	from int
}

// StartCSI starts what does not run, and waits until the node knows the driver. The scenario's rules end with it.
func (s *Scene) StartCSI() *CSI {
	s.T.Helper()
	c := &CSI{Scene: s}
	c.Rules()
	if err := s.Instance.StartCSI(s.T.Context()); err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { c.Rules() })
	Await(s.T, Patience, "the registration of the CSI driver", func() error {
		node, err := s.API.StorageV1().CSINodes().Get(s.T.Context(), s.NodeName(), metav1.GetOptions{})
		if err == nil && (len(node.Spec.Drivers) != 1 || node.Spec.Drivers[0].Name != rig.CSIDriverName) {
			err = fmt.Errorf("the CSINode has the drivers %v", node.Spec.Drivers)
		}
		return err
	})
	c.from = len(c.Calls())
	return c
}

// Rules makes these the only rules for the driver's calls.
func (c *CSI) Rules(rules ...csicalls.Rule) {
	c.T.Helper()
	if err := csicalls.Write(c.CSIRules(), rules...); err != nil {
		c.T.Fatal(err)
	}
}

// Calls are the driver's calls since the scenario began.
func (c *CSI) Calls() []csicalls.Line {
	c.T.Helper()
	lines := c.allCalls()
	return lines[min(c.from, len(lines)):]
}

// allCalls are those since the rig is up.
func (c *CSI) allCalls() []csicalls.Line {
	c.T.Helper()
	lines, err := csicalls.Read(c.CSICalls())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		c.T.Fatal(err)
	}
	return lines
}

// Called returns the last line of a method and a volume that keep accepts, and false if there is none. If one of them
// is empty it is any.
func (c *CSI) Called(method, volume string, keep func(csicalls.Line) bool) (csicalls.Line, bool) {
	c.T.Helper()
	lines := c.Calls()
	for i := len(lines) - 1; i >= 0; i-- {
		if l := lines[i]; (method == "" || l.Method == method) && (volume == "" || l.Volume == volume) && keep(l) {
			return l, true
		}
	}
	return csicalls.Line{}, false
}

// Numbers is how many calls the node's service has had, those before the scenario too.
func (c *CSI) Numbers() int {
	c.T.Helper()
	last := 0
	for _, l := range c.allCalls() {
		last = max(last, l.Number)
	}
	return last
}

// KeepsContract judges the calls of the scenario.
func (c *CSI) KeepsContract() {
	c.T.Helper()
	for _, b := range csicalls.Breaches(c.Calls()) {
		c.T.Error(b)
	}
}

// LeavesNoVolume waits until no volume is staged, published or attached, and nothing of one is mounted or on disk.
func (c *CSI) LeavesNoVolume() {
	c.T.Helper()
	Await(c.T, Patience, "an end of all CSI volumes", func() error {
		left := csicalls.Left(c.Calls())
		attached, err := c.API.StorageV1().VolumeAttachments().List(c.T.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, a := range attached.Items {
			left = append(left, "attached: "+*a.Spec.Source.PersistentVolumeName)
		}
		onDisk, err := c.onDisk()
		if err != nil {
			return err
		}
		if left = append(left, onDisk...); len(left) > 0 {
			return fmt.Errorf("left:\n%s", strings.Join(left, "\n"))
		}
		return nil
	})
}

// onDisk lists what there is of volumes in the folders of the driver and of block volumes.
func (c *CSI) onDisk() (found []string, err error) {
	root := filepath.Join(c.RootDir(), "plugins", "kubernetes.io", "csi")
	mounts, err := machine.MountsBelow(root)
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		found = append(found, "mount: "+m)
	}
	blocks := []string{"staging", "publish"} // those of all block volumes, which stay
	for _, dir := range []string{rig.CSIDriverName, "volumeDevices", "volumeDevices/staging", "volumeDevices/publish"} {
		names, err := machine.Names(filepath.Join(root, dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, n := range names {
			if dir != "volumeDevices" || !slices.Contains(blocks, n) {
				found = append(found, "folder: "+filepath.Join(dir, n))
			}
		}
	}
	return found, nil
}

// Block has a claim be for a block volume of a size.
func Block(size string) func(*corev1.PersistentVolumeClaimSpec) {
	return func(s *corev1.PersistentVolumeClaimSpec) {
		mode := corev1.PersistentVolumeBlock
		s.VolumeMode = &mode
		s.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(size)
	}
}

// Sized has a claim be for a file system of a size. Those of other claims are folders.
func Sized(size string) func(*corev1.PersistentVolumeClaimSpec) {
	return func(s *corev1.PersistentVolumeClaimSpec) {
		class := rig.CSISizedClass
		s.StorageClassName = &class
		s.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(size)
	}
}

// Claim makes a claim that the driver has to provision a volume for, waits for it, and returns the driver's name of the
// volume. The claim and the volume go with the scenario.
func (c *CSI) Claim(name string, changes ...func(*corev1.PersistentVolumeClaimSpec)) string {
	c.T.Helper()
	c.create(name, changes...)
	return c.Volume(name)
}

// ClaimAll makes claims at once, as Claim does.
func (c *CSI) ClaimAll(names ...string) {
	c.T.Helper()
	for _, name := range names {
		c.create(name)
	}
	for _, name := range names {
		c.Volume(name)
	}
}

func (c *CSI) create(name string, changes ...func(*corev1.PersistentVolumeClaimSpec)) {
	c.T.Helper()
	claims := c.API.CoreV1().PersistentVolumeClaims(c.Namespace)
	if _, err := claims.Create(c.T.Context(), NewClaim(name, changes...), metav1.CreateOptions{}); err != nil {
		c.T.Fatal(err)
	}
}

// NewClaim is a claim that the driver is to provision a volume for.
func NewClaim(name string, changes ...func(*corev1.PersistentVolumeClaimSpec)) *corev1.PersistentVolumeClaim {
	class := rig.CSIDriverName
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: resource.MustParse("1Mi"),
			}},
		},
	}
	for _, change := range changes {
		change(&claim.Spec)
	}
	return claim
}

// Volume waits for the volume of a claim, and returns the driver's name of it.
func (c *CSI) Volume(name string) string {
	c.T.Helper()
	var volume string
	Await(c.T, Patience, "a volume for claim "+name, func() error {
		found, err := c.API.CoreV1().PersistentVolumeClaims(c.Namespace).Get(c.T.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if found.Status.Phase != corev1.ClaimBound {
			return fmt.Errorf("the claim is %s", found.Status.Phase)
		}
		pv, err := c.API.CoreV1().PersistentVolumes().Get(c.T.Context(), found.Spec.VolumeName, metav1.GetOptions{})
		if err == nil {
			volume = pv.Spec.CSI.VolumeHandle
		}
		return err
	})
	return volume
}

// Resize asks for another size of a claim.
func (c *CSI) Resize(name, size string) {
	c.T.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"resources":{"requests":{"storage":%q}}}}`, size)
	_, err := c.API.CoreV1().PersistentVolumeClaims(c.Namespace).Patch(c.T.Context(), name,
		types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		c.T.Fatal(err)
	}
}

// WaitNodeResize waits until what is left of the growth of a claim's volume is the node's.
func (c *CSI) WaitNodeResize(name string) {
	c.T.Helper()
	Await(c.T, Patience, "the controller to make the volume of claim "+name+" larger", func() error {
		found, err := c.API.CoreV1().PersistentVolumeClaims(c.Namespace).Get(c.T.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		is := found.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
		if is != corev1.PersistentVolumeClaimNodeResizePending {
			return fmt.Errorf("the claim is %q", is)
		}
		return nil
	})
}

// WaitCapacity waits until a claim has a capacity, and nothing is to be done for it any more.
func (c *CSI) WaitCapacity(name string, want resource.Quantity) {
	c.T.Helper()
	Await(c.T, Patience, "the capacity of claim "+name, func() error {
		found, err := c.API.CoreV1().PersistentVolumeClaims(c.Namespace).Get(c.T.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if is := found.Status.Capacity[corev1.ResourceStorage]; is.Cmp(want) != 0 {
			return fmt.Errorf("the claim has %s", is.String())
		}
		for _, condition := range found.Status.Conditions {
			if strings.Contains(string(condition.Type), "Resiz") {
				return fmt.Errorf("the claim has the condition %v", condition)
			}
		}
		return nil
	})
}

// DeleteClaims deletes claims, and waits until the driver has deleted their volumes.
func (c *CSI) DeleteClaims(names ...string) {
	c.T.Helper()
	ctx := context.WithoutCancel(c.T.Context())
	for _, name := range names {
		err := c.API.CoreV1().PersistentVolumeClaims(c.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil {
			c.T.Error(err)
		}
	}
	Await(c.T, Patience, "the end of the claims' volumes", func() error {
		all, err := c.API.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, pv := range all.Items {
			if ref := pv.Spec.ClaimRef; ref != nil && ref.Namespace == c.Namespace {
				return fmt.Errorf("volume %s of claim %s is %s", pv.Name, ref.Name, pv.Status.Phase)
			}
		}
		return nil
	})
}

// Token is the token for an audience that the driver was given with a volume.
func Token(l csicalls.Line, audience string) (string, error) {
	var tokens map[string]struct {
		Token string `json:"token"`
	}
	text := l.Context["csi.storage.k8s.io/serviceAccount.tokens"]
	if err := json.Unmarshal([]byte(text), &tokens); err != nil {
		return "", fmt.Errorf("the volume's context has the tokens %q: %w", text, err)
	}
	return tokens[audience].Token, nil
}

// WithClaims gives the first container of a pod claims, at the folders of their names.
func WithClaims(p *corev1.Pod, claims ...string) *corev1.Pod {
	for _, name := range claims {
		withVolume(p, name, corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		})
	}
	return p
}

// WithDevices gives the first container of a pod the devices of claims, by their names in /dev.
func WithDevices(p *corev1.Pod, claims ...string) *corev1.Pod {
	main := &p.Spec.Containers[0]
	for _, name := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
		main.VolumeDevices = append(main.VolumeDevices, corev1.VolumeDevice{Name: name, DevicePath: "/dev/" + name})
	}
	return p
}

// WithInline gives the first container of a pod inline volumes of the CSI driver, at the folders of their names.
func WithInline(p *corev1.Pod, names ...string) *corev1.Pod {
	for _, name := range names {
		withVolume(p, name, corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
			Driver: rig.CSIDriverName, VolumeAttributes: map[string]string{"inline": name},
		}})
	}
	return p
}

// WithHostFolder gives the first container of a pod a folder of the host, at /folder. It is made unless it is there.
func WithHostFolder(p *corev1.Pod, path string) *corev1.Pod {
	kind := corev1.HostPathDirectoryOrCreate
	withVolume(p, "folder", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind}})
	return p
}

func withVolume(p *corev1.Pod, name string, source corev1.VolumeSource) {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	main := &p.Spec.Containers[0]
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
}
