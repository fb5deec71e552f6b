package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/microlet/microlet/compose/rig/internal/build"
)

// Files are the files of the repository that the runs of a suite are judged by.
type Files struct {
	Suite   Suite
	Kubelet string // specs that the real kubelet passes
	Reasons string // why microlet does not pass some of them yet
	Skips   string // why the kubelet does not pass some of the selection; "" if nothing says it
	Page    string // docs/conformance.md
	version string // of the suite, as pinned
}

// locateTools finds compose/tools in the repository around the working directory.
func locateTools() (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	return build.Locate(here)
}

// dataFolder is compose/conformance, beside compose/tools.
func dataFolder(tools string) string { return filepath.Join(filepath.Dir(tools), "conformance") }

// Locate finds the suite's files in the repository around the working directory.
func Locate(suite Suite) (Files, error) {
	tools, err := locateTools()
	if err != nil {
		return Files{}, err
	}
	version, err := build.Version(tools, suite.Program)
	if err != nil {
		return Files{}, err
	}
	dir := dataFolder(tools)
	files := Files{
		Suite:   suite,
		Kubelet: filepath.Join(dir, suite.prefix+"kubelet.txt"),
		Reasons: filepath.Join(dir, suite.prefix+"reasons.txt"),
		Page:    filepath.Join(tools, "../../docs/conformance.md"),
		version: version,
	}
	if suite.explained {
		files.Skips = filepath.Join(dir, suite.prefix+"skips.txt")
	}
	return files, nil
}

// Known is what the files say.
type Known struct {
	Suite     Suite
	Reference Reference
	Reasons   Reasons // of microlet
	Skips     Reasons // of the kubelet; nil if nothing says it
}

// Read reads the kubelet's list and the reasons.
func (f Files) Read() (Known, error) {
	known := Known{Suite: f.Suite}
	var err error
	if known.Reference, err = ReadReference(f.Kubelet); err != nil {
		return known, err
	}
	if version := known.Reference.Version; version != f.version {
		return known, fmt.Errorf("the kubelet's list %s is of Kubernetes %s and the suite is of %s: record it again",
			f.Kubelet, version, f.version)
	}
	if known.Reasons, err = ReadReasons(f.Reasons); err != nil || f.Skips == "" {
		return known, err
	}
	known.Skips, err = ReadReasons(f.Skips)
	return known, err
}

// Explained are the reasons why the agent does not pass a spec.
func (f Files) Explained(agent string) (Reasons, error) {
	all := Reasons{}
	for _, file := range []struct {
		path string
		read bool
	}{{f.Reasons, agent == Microlet}, {f.Skips, f.Skips != ""}} {
		if !file.read {
			continue
		}
		reasons, err := ReadReasons(file.path)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, reasons)
	}
	return all, nil
}

// RecordKubelet writes the list of what the kubelet passed.
func (f Files) RecordKubelet(results Results) error {
	return WriteReference(f.Kubelet, f.Suite, f.version, results.Passes())
}

// RecordMicrolet writes what microlet passed to the page.
func (f Files) RecordMicrolet(results Results) error {
	known, err := f.Read()
	if err != nil {
		return err
	}
	return WritePage(f.Page, f.Suite, Section(known, results))
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
