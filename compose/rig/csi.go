package rig

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/microlet/microlet/compose/rig/internal/build"
	"github.com/microlet/microlet/compose/rig/internal/pki"
)

// Programs of an instance with GroupCSI, as Log and Status name them. They do not run until StartCSI.
const (
	CSIDriver      = build.CSIDriver
	CSIAttacher    = build.CSIAttacher
	CSIProvisioner = build.CSIProvisioner
	CSIResizer     = build.CSIResizer
)

const (
	// CSIDriverName is the name of the CSI driver and of its CSIDriver and StorageClass.
	CSIDriverName = "csidriver.microlet.example"
	// CSISizedClass is the StorageClass of volumes that are file systems of the size that is asked for.
	CSISizedClass = CSIDriverName + "-sized"
)

//go:embed csi.yaml
var csiObjects string

// csiPrograms in the order of their start.
func csiPrograms() []string {
	return []string{CSIDriver, CSIAttacher, CSIProvisioner, CSIResizer}
}

// StartCSI starts those of a CSI driver and of the controllers beside it that do not run. The driver registers itself
// with the node agent. They run until StopCSI or Down. With a driver that has ended, its controllers restart: each of
// them ends at its first call of the lost driver, and must be started again.
func (i *Instance) StartCSI(ctx context.Context) error {
	if !i.hasCSI() {
		return fmt.Errorf("start %s: instance %s was made without the group %s", CSIDriver, i.r.Name, GroupCSI)
	}
	objects := strings.ReplaceAll(csiObjects, "${DRIVER}", CSIDriverName)
	if err := i.kubectlWith(ctx, objects, "apply", "-f", "-"); err != nil {
		return err
	}
	if !i.process(CSIDriver).Alive() {
		if err := i.StopCSI(ctx); err != nil {
			return err
		}
	}
	for _, name := range csiPrograms() {
		if i.process(name).Alive() {
			continue
		}
		if err := i.start(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// StopCSI stops the driver and its controllers.
func (i *Instance) StopCSI(ctx context.Context) error {
	var problems []error
	for _, name := range csiPrograms() {
		problems = append(problems, i.stop(ctx, name))
	}
	return errors.Join(problems...)
}

// CSICalls is the file to which the driver writes its calls, a line of JSON at the begin and at the end of each.
func (i *Instance) CSICalls() string { return filepath.Join(i.r.Dir, "csi-calls") }

// CSIRules is the file of rules, in JSON, that the driver reads at each call.
func (i *Instance) CSIRules() string { return filepath.Join(i.r.Dir, "csi-rules") }

// CSIVolumes is the folder in which the driver has its volumes.
func (i *Instance) CSIVolumes() string { return filepath.Join(i.r.Dir, "csi-volumes") }

// CSIFiles is the folder that a volume of the driver shows, by the driver's name of it, unless it is a block volume.
func (i *Instance) CSIFiles(volume string) string {
	return filepath.Join(i.CSIVolumes(), volume, "files")
}

func (i *Instance) hasCSI() bool { return i.r.Binaries[CSIDriver] != "" }

// csiSocket is in the agent's folder, where it takes drivers' sockets.
func (i *Instance) csiSocket() string {
	return filepath.Join(i.RootDir(), "plugins", CSIDriverName, "csi.sock")
}

func (i *Instance) csiArgs(name string) []string {
	if name == CSIDriver {
		return []string{
			"-endpoint=" + i.csiSocket(), "-drivername=" + CSIDriverName, "-nodeid=" + i.NodeName(),
			"-statedir=" + i.CSIVolumes(), "-enable-attach",
			"-registration=" + filepath.Join(i.RootDir(), "plugins_registry", CSIDriverName+"-reg.sock"),
			"-calls=" + i.CSICalls(), "-rules=" + i.CSIRules(),
		}
	}
	args := []string{
		"--kubeconfig=" + pki.Kubeconfig(i.pkiDir(), pki.Admin), "--csi-address=" + i.csiSocket(),
		// What is measured is the node, and not how often its cluster may be asked.
		"--kube-api-qps=500", "--kube-api-burst=1000",
	}
	switch name {
	case CSIProvisioner:
		return append(args, "--default-fstype=ext4", "--worker-threads=50")
	case CSIResizer:
		return append(args, "--workers=50")
	}
	return append(args, "--worker-threads=50")
}
