// Command sbom writes the software bill of materials of a Go program: "sbom PROGRAM >FILE".
//
// It is CycloneDX 1.6 as JSON, with the modules that the linker wrote into the program. The same program gives the same
// bytes.
package main

import (
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"path"
	"runtime/debug"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: sbom PROGRAM >FILE")
		os.Exit(2)
	}
	if err := run(os.Stdout, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, program string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	encoder := cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true)
	return encoder.EncodeVersion(materials(info), cdx.SpecVersion1_6)
}

// materials are the program, the modules in it, and the Go standard library.
func materials(info *debug.BuildInfo) *cdx.BOM {
	modules := []cdx.Component{component(cdx.ComponentTypeLibrary, "std", info.GoVersion)}
	for _, m := range info.Deps {
		if m.Replace != nil {
			if m.Replace.Version == "" {
				m.Version = "" // a folder of this checkout, which has the version of the program
			} else {
				m = m.Replace
			}
		}
		c := component(cdx.ComponentTypeLibrary, m.Path, m.Version)
		modules = append(modules, c)
	}
	bom := cdx.NewBOM()
	program := component(cdx.ComponentTypeApplication, info.Path, "")
	program.Name = path.Base(info.Path)
	bom.Metadata = &cdx.Metadata{Component: &program}
	bom.Components = &modules
	return bom
}

// component names a module as https://github.com/package-url/purl-spec has it for Go.
func component(kind cdx.ComponentType, name, version string) cdx.Component {
	purl := "pkg:golang/" + name
	if version != "" {
		purl += "@" + version
	}
	return cdx.Component{Type: kind, BOMRef: purl, Name: name, Version: version, PackageURL: purl}
}
