"""MD5 sums of the files inside of the published archives, as public code states and checks them."""

# In pickles, and in the binary version.
_CIFAR10 = """
    data_batch_1 c99cafc152244af753f735de768cd75f 5dd7e06a14cb22eb9f671a540d1b7c25
    data_batch_2 d4bba439e000b95fd0a9bffe97cbabec 5ea93a67294ea407fff1d09f752e9692
    data_batch_3 54ebc095f3ab1f0389bbae665268c751 942cd6a4bcdd0dd3c604fbe906cb4421
    data_batch_4 634d18415352ddfa80567beed471001a ae636b3ba5c66a11e91e8cb52e771fcb
    data_batch_5 482c414d41f54cd18b22e5b47cb7c3cb 53f37980c15c3d472c316c40844f3f0d
    test_batch   40351d587109b95175f43aff81a1287e 803d5f7f4d78ea53de84dbe85f74fb6d
"""
_CIFAR100 = """
    train 16019d7e3df5f24257cddd939b257f8d 6172c7755cfe09b2fe270c85cebc1b15
    test  f0ef6b0ae62326f3e7ffdfab6717acfc 4499cfba6c016c1be1438163640a0898
"""
# Of CIFAR-10-C, and of CIFAR-100-C.
_CORRUPTED = """
    brightness        0a81ef75e0b523c3383219c330a85d48 f22d7195aecd6abb541e27fca230c171
    contrast          3c8262171c51307f916c30a3308235a8 322bb385f1d05154ee197ca16535f71e
    defocus_blur      7d1322666342a0702b1957e92f6254bc d923e3d9c585a27f0956e2f2ad832564
    elastic_transform 9421657c6cd452429cf6ce96cc412b5f a0792bd6581f6810878be71acedfc65a
    fog               7b397314b5670f825465fbcd1f6e9ccd 4efc7ebd5e82b028bdbe13048e3ea564
    frost             31f6ab3bce1d9934abfb0cc13656f141 3a39c6823bdfaa0bf8b12fe7004b8117
    gaussian_blur     c33370155bc9b055fb4a89113d3c559d 5204ba0d557839772ef5a4196a052c3e
    gaussian_noise    ecaf8b9a2399ffeda7680934c33405fd ecc4d366eac432bdf25c024086f5e97d
    glass_blur        7361fb4019269e02dbf6925f083e8629 0bf384f38e5ccbf8dd479d9059b913e1
    impulse_noise     2090e01c83519ec51427e65116af6b1a 3b3c210ddfa0b5cb918ff4537a429fef
    jpeg_compression  2b9cc4c864e0193bb64db8d7728f8187 c851b7f1324e1d2ffddeb76920576d11
    labels            c439b113295ed5254878798ffe28fd54 bb4026e9ce52996b95f439544568cdb2
    motion_blur       fffa5f852ff7ad299cfe8a7643f090f4 732a7e2e54152ff97c742d4c388c5516
    pixelate          0f14f7e2db14288304e1de10df16832f 96c00c60f144539e14cffb02ddbd0640
    saturate          1cfae0964219c5102abbb883e538cc56 c0697e9fdd646916a61e9c312c77bf6b
    shot_noise        3a7239bb118894f013d9bf1984be7f11 b0a1fa6e1e465a747c1b204b1914048a
    snow              bb238de8555123da9c282dea23bd6e55 0237be164583af146b7b144e73b43465
    spatter           8a5a3903a7f8f65b59501a6093b4311e 12ccf41d62564d36e1f6a6ada5022728
    speckle_noise     ef00b87611792b00df09c0b0237a1e30 e3f215b1a0f9fd9fd6f0d1cf94a7ce99
    zoom_blur         6ea8e63f1c5cdee1517533840641641b 0204613400c034a81c4830d5df81cb82
"""


def _column(table: str, number: int, ending: str = "") -> dict[str, str]:
    rows = [line.split() for line in table.strip().splitlines()]
    return {f"{row[0]}{ending}": row[number] for row in rows}


CIFAR10 = {"batches.meta": "5ff9c542aee3614f3951f8cda6e48888"} | _column(_CIFAR10, 1) | _column(_CIFAR10, 2, ".bin")
CIFAR100 = {"meta": "7973b15100ade9c7d40fb424638fde48"} | _column(_CIFAR100, 1) | _column(_CIFAR100, 2, ".bin")
CIFAR10_C = _column(_CORRUPTED, 1, ".npy")
CIFAR100_C = _column(_CORRUPTED, 2, ".npy")
