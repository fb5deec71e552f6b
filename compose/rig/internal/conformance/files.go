package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/microlet/microlet/compose/rig/internal/build"
)

// Files are the files of the repository that the runs are judged by.
type Files struct {
	Kubelet string // specs that the real kubelet passes
	Reasons string // why microlet does not pass some of them yet
	Page    string // docs/conformance.md
	version string // of the suite, as pinned
}

// Locate finds the files in the repository around the working directory.
func Locate() (Files, error) {
	here, err := os.Getwd()
	if err != nil {
		return Files{}, fmt.Errorf("find the repository: %w", err)
	}
	tools, err := build.Locate(here)
	if err != nil {
		return Files{}, err
	}
	version, err := build.Version(tools, build.Suite)
	if err != nil {
		return Files{}, err
	}
	dir := filepath.Join(filepath.Dir(tools), "conformance")
	return Files{
		Kubelet: filepath.Join(dir, "kubelet.txt"), Reasons: filepath.Join(dir, "reasons.txt"),
		Page: filepath.Join(tools, "../../docs/conformance.md"), version: version,
	}, nil
}

// Read reads the kubelet's list and the reasons.
func (f Files) Read() (Reference, Reasons, error) {
	ref, err := ReadReference(f.Kubelet)
	if err != nil {
		return ref, nil, err
	}
	if ref.Version != f.version {
		return ref, nil, fmt.Errorf("the kubelet's list %s is of Kubernetes %s and the suite is of %s: record it again", f.Kubelet, ref.Version, f.version)
	}
	reasons, err := ReadReasons(f.Reasons)
	return ref, reasons, err
}

// RecordKubelet writes the list of what the kubelet passed.
func (f Files) RecordKubelet(results Results) error {
	return WriteReference(f.Kubelet, f.version, results.Passes())
}

// RecordMicrolet writes what microlet passed to the page.
func (f Files) RecordMicrolet(results Results) error {
	ref, reasons, err := f.Read()
	if err != nil {
		return err
	}
	return WritePage(f.Page, Section(ref, results, reasons))
}

const resultsFile = "results.json"

// Save writes the results of both tries to the folder, for Load.
func (r Results) Save(dir string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("save results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, resultsFile), text, 0o644); err != nil {
		return fmt.Errorf("save results: %w", err)
	}
	return nil
}

// Load reads what Save wrote; nil if the agent of that folder never ran.
func Load(dir string) (*Results, error) {
	text, err := os.ReadFile(filepath.Join(dir, resultsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("load results: %w", err)
	}
	var r Results
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("load results of %s: %w: remove that folder", dir, err)
	}
	return &r, nil
}
