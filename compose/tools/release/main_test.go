package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// The program of this test is a Go program, so its own materials are known.
func TestMaterialsOfAProgram(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := run(out, self); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two runs differ")
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(&first, cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, c := range *bom.Components {
		versions[c.Name] = c.Version
	}
	if !strings.HasPrefix(versions["github.com/CycloneDX/cyclonedx-go"], "v0.") || versions["std"] == "" {
		t.Errorf("the library that it is built with is missing: %v", versions)
	}
}

func TestNoProgram(t *testing.T) {
	if err := run(&bytes.Buffer{}, "main.go"); err == nil || !strings.Contains(err.Error(), "main.go") {
		t.Errorf("a file that is no program gives %v", err)
	}
}
