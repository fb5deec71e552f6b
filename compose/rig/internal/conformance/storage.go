package conformance

import (
	"context"
	_ "embed"
	"fmt"
	"path"
	"strings"

	"github.com/microlet/microlet/compose/rig"
)

// driverDefinition says what the rig's CSI driver can do, in the form of the suite's external drivers.
//
//go:embed csidriver.yaml
var driverDefinition string

// startDriver starts the rig's CSI driver and returns the file from which the suite makes its specs of a driver.
func (r Run) startDriver(ctx context.Context, p place) (string, error) {
	if err := r.Instance.StartCSI(ctx); err != nil {
		return "", err
	}
	file := path.Join(p.dir(), "csidriver.yaml")
	text := strings.ReplaceAll(driverDefinition, "${DRIVER}", rig.CSIDriverName)
	if err := p.write(ctx, file, []byte(text), 0o644); err != nil {
		return "", fmt.Errorf("define the CSI driver: %w", err)
	}
	return file, nil
}
