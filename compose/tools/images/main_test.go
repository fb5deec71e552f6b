package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// program is the smallest file that says for which machine it is.
func program(t *testing.T, path string, machine elf.Machine) {
	t.Helper()
	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Ehsize: 64, Phentsize: 56,
		Shentsize: 64,
	}
	var file bytes.Buffer
	if err := binary.Write(&file, binary.LittleEndian, header); err != nil {
		t.Fatal(err)
	}
	create(t, path, file.String())
}

func create(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// files makes the files of a release, and returns the command line that names them.
func files(t *testing.T) (dir string, args []string) {
	t.Helper()
	dir = t.TempDir()
	program(t, filepath.Join(dir, "amd64"), elf.EM_X86_64)
	program(t, filepath.Join(dir, "arm64"), elf.EM_AARCH64)
	create(t, filepath.Join(dir, "amd64.json"), `{"of": "amd64"}`)
	create(t, filepath.Join(dir, "arm64.json"), `{"of": "arm64"}`)
	create(t, filepath.Join(dir, "LICENSE"), "Apache")
	args = []string{"-version=v0.1.0", "-license=" + filepath.Join(dir, "LICENSE"), "-o=" + filepath.Join(dir, "out.tar")}
	for _, arch := range []string{"amd64", "arm64"} {
		path := filepath.Join(dir, arch)
		args = append(args, "-platform="+arch+"="+path+","+path+".json")
	}
	return dir, args
}

func build(t *testing.T) []byte {
	t.Helper()
	dir, args := files(t)
	in, err := parse(args, "1790000000")
	if err == nil {
		err = write(in)
	}
	if err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".images-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "out.tar"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestReproducible: the same files give the same archive, wherever and whenever they were written.
func TestReproducible(t *testing.T) {
	if !bytes.Equal(build(t), build(t)) {
		t.Error("two archives of the same files differ")
	}
}

// unpack reads the layout as another tool would.
func unpack(t *testing.T, data []byte) v1.ImageIndex {
	t.Helper()
	dir := t.TempDir()
	r := tar.NewReader(bytes.NewReader(data))
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.FromSlash(header.Name))
		if header.Typeflag == tar.TypeDir {
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		create(t, path, string(text))
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Fatal(err)
	}
	return index
}

func TestImage(t *testing.T) {
	index := unpack(t, build(t))
	root, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(root.Manifests) != 3 || root.Manifests[0].Annotations[refName] != "v0.1.0" {
		t.Fatalf("the layout has %+v", root.Manifests)
	}
	images, err := index.ImageIndex(root.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := images.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for i, arch := range []string{"amd64", "arm64"} {
		if p := manifest.Manifests[i].Platform; p == nil || p.Architecture != arch || p.OS != "linux" {
			t.Fatalf("platform %d is %v", i, p)
		}
		checkImage(t, images, manifest.Manifests[i], arch)
		checkReferrer(t, index, root.Manifests[i+1], manifest.Manifests[i], arch)
	}
}

func checkImage(t *testing.T, images v1.ImageIndex, d v1.Descriptor, arch string) {
	t.Helper()
	img, err := images.Image(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Architecture != arch || config.OS != "linux" || config.Config.Entrypoint[0] != "/usr/bin/microlet" ||
		config.Created.Unix() != 1790000000 || config.Config.Labels["org.opencontainers.image.version"] != "v0.1.0" ||
		config.Config.User != "65534:65534" {
		t.Errorf("%s: the configuration is %+v", arch, config)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%s: %d layers, %v", arch, len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag == tar.TypeReg {
			names = append(names, header.FileInfo().Mode().String()+" "+header.Name)
		}
	}
	want := "-rwxr-xr-x usr/bin/microlet, -rw-r--r-- usr/share/doc/microlet/copyright"
	if got := strings.Join(names, ", "); got != want {
		t.Errorf("%s: the image has %s", arch, got)
	}
}

func checkReferrer(t *testing.T, index v1.ImageIndex, d, subject v1.Descriptor, arch string) {
	t.Helper()
	bill, err := index.Image(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := bill.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if manifest.Subject == nil || manifest.Subject.Digest != subject.Digest ||
		manifest.Config.MediaType != materialsType || d.ArtifactType != string(materialsType) {
		t.Errorf("%s: the bill of materials is %+v", arch, manifest)
	}
	layer, err := bill.LayerByDigest(manifest.Layers[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	content, err := layer.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(content); err != nil || !strings.Contains(string(text), arch) {
		t.Errorf("%s: the bill of materials is %s, %v", arch, text, err)
	}
}

func TestBadInput(t *testing.T) {
	dir, args := files(t)
	for _, c := range []struct {
		name  string
		args  []string
		epoch string
		want  []string
	}{
		{"nothing", nil, "1", []string{"-version is", "-license is", "-o is empty", "-platform is missing"}},
		{"another architecture", []string{"-platform=sparc=a,b"}, "1", []string{"-platform", "amd64 or arm64"}},
		{"no bill of materials", []string{"-platform=amd64=a"}, "1", []string{"-platform", "BOM"}},
		{"one twice", append([]string{args[3]}, args...), "1", []string{"-platform has amd64 twice"}},
		{"no date", args, "", []string{"SOURCE_DATE_EPOCH"}},
		{"more", append(args, "surplus"), "1", []string{`"surplus" is no flag`}},
	} {
		_, err := parse(c.args, c.epoch)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error says nothing of %q: %v", c.name, want, err)
			}
		}
	}
	args[4] = strings.Replace(args[3], "amd64=", "arm64=", 1)
	in, err := parse(args, "1")
	if err != nil {
		t.Fatal(err)
	}
	if err := write(in); err == nil || !strings.Contains(err.Error(), "-platform arm64") {
		t.Errorf("the program of another platform: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "out.tar")); err == nil {
		t.Error("an archive was written")
	}
}
